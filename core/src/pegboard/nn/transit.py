"""Small values on their way between host and device.

A device that runs behind the host must not make it wait: what goes there passes through pinned
memory, in one transfer for as much as possible; what comes back is requested when it is made and
read behind a mark (`pegboard.api.platform.Mark`). On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["column", "send", "to_host"]

_ALIGNMENT = 16
"""Bytes; each array of a transfer begins at a multiple."""

Array = np.ndarray[Any, Any]


def send(device: torch.device, *arrays: Array) -> list[torch.Tensor]:
    """Arrays of any dtypes and shapes to the device, in one transfer.

    On a CPU the tensors share the arrays' memory.
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts, total = [], 0
    for array in arrays:
        starts.append(total)
        total += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    staged = torch.empty(total, dtype=torch.uint8, pin_memory=True)
    packed = staged.numpy()
    for start, array in zip(starts, arrays, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1)
        packed[start : start + array.nbytes] = flat.view(np.uint8)
    # The allocator of pinned memory gives it out again only when the copy is over.
    landed = staged.to(device, non_blocking=True)
    return [
        landed[start : start + array.nbytes].view(_dtype(array)).view(array.shape)
        for start, array in zip(starts, arrays, strict=True)
    ]


def _dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def column(
    values: Sequence[int] | Sequence[float], dtype: Any, device: torch.device
) -> torch.Tensor:
    """A list of numbers, as `dtype` of numpy, on the device."""
    return send(device, np.array(values, dtype=dtype))[0]


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host that is complete once a mark behind this call was waited for; on a CPU the
    tensor itself."""
    if tensor.device.type == "cpu":
        return tensor
    landing = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return landing.copy_(tensor, non_blocking=True)
