"""Kernels run on the GPU where there is one, else on the host by Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from pegboard_testkit.interpreter import interpret_without_gpu

# Triton asks when a kernel is defined, so this stands before any import of one.
interpret_without_gpu()


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)
