"""Torch's profiler, over all threads of a process."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

__all__ = ["begin_profile"]


def begin_profile() -> Any:
    """A profile that has begun; ``stop()`` and ``export_chrome_trace(path)`` end it."""
    kinds = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        kinds.append(ProfilerActivity.CUDA)
    # Steps run on a thread of their own, and only this setting sees other threads than this one.
    config = _ExperimentalConfig(profile_all_threads=True)
    found = profile(activities=kinds, experimental_config=config)
    found.start()
    return found
