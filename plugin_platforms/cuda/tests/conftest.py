"""Kernels run on the GPU where there is one, else on the host by Triton's interpreter."""

from __future__ import annotations

import os
import shutil

import pytest
import torch

if shutil.which("nvidia-smi") is None:
    # Triton reads this when a kernel is defined, so it stands before any import of one.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)
