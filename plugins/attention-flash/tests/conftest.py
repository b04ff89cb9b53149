"""The plugin's own kernels run under Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import pytest
import torch

if shutil.which("nvidia-smi") is None:
    # Triton reads this when a kernel is defined, so it stands before any import of one.
    os.environ["TRITON_INTERPRET"] = "1"


def masked_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, seen: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """``query [heads, n, dim]``, ``key`` and ``value [kv_heads, m, dim]``, ``seen [n, m]``: in
    float32. A value that is not a number spoils the result even where it is not seen, as it does
    in the libraries."""
    group = query.shape[0] // key.shape[0]
    keys, values = (part.float().repeat_interleave(group, 0) for part in (key, value))
    scores = (query.float() @ keys.transpose(1, 2) * scale).masked_fill(~seen, -torch.inf)
    out = scores.softmax(-1) @ values
    return out.to(query.dtype), scores.logsumexp(-1)


@pytest.fixture(scope="session")
def attention() -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """`masked_attention`, the stand-in for the libraries."""
    return masked_attention
