"""What can be learnt of GPUs without torch."""

from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["driver_present", "driver_version", "hidden"]

_FILES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
"""The last one is the GPU of a Linux that runs under Windows."""
_LIBRARY = "libcuda.so.1"


def driver_present(files: Iterable[str] = _FILES) -> bool:
    """Whether something of an NVIDIA driver is there; no promise that it works."""
    if any(Path(file).exists() for file in files) or shutil.which("nvidia-smi"):
        return True
    return _library() is not None


def driver_version() -> str | None:
    """The newest CUDA version that the driver supports, e.g. ``"13.0"``."""
    library, number = _library(), ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(number)):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def hidden() -> str | None:
    """The value of ``CUDA_VISIBLE_DEVICES`` if it hides every GPU."""
    value = os.environ.get("CUDA_VISIBLE_DEVICES")
    return value if value is not None and value.strip() in ("", "-1") else None


def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
