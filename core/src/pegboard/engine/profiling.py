"""Profiles of the engine's process, by torch's profiler."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegboard.api.descriptor import LazyRef
from pegboard.errors import RequestError, UnsupportedError

__all__ = ["PROFILE_VARIABLE", "EngineProfiler"]

PROFILE_VARIABLE = "VLLM_TORCH_PROFILER_DIR"
"""Environment variable that names the folder which profiles are written to."""


_BEGIN = LazyRef("pegboard.runner.profile:begin_profile")
"""Where there are tensors; what plans the steps knows none."""


class EngineProfiler:
    """Records the steps between `start` and `stop`. Called between steps, on their thread.

    What is recorded stays in memory until `stop`: some MB for each second.
    """

    def __init__(self, ranks: int = 1, environ: Mapping[str, str] = os.environ) -> None:
        """`ranks`: processes that compute, if they are not this one."""
        self._ranks = ranks
        self._folder = environ.get(PROFILE_VARIABLE)
        self._running: Any = None

    def start(self) -> None:
        """Begin. Raises `UnsupportedError` where no folder is named or this process computes
        nothing, and `RequestError` if a profile is being recorded."""
        if not self._folder:
            raise UnsupportedError(
                f"profiles are not recorded: {PROFILE_VARIABLE} names no folder for them"
            )
        if self._ranks > 1:
            raise UnsupportedError(
                f"profiles are not recorded: the {self._ranks} ranks have processes of their own"
            )
        if self._running is not None:
            raise RequestError("a profile is being recorded already")
        os.makedirs(self._folder, exist_ok=True)
        self._running = _BEGIN.load()()

    def stop(self) -> str:
        """End, and write the trace, which Perfetto and chrome://tracing show; its path. Raises
        `RequestError` if no profile is being recorded."""
        if self._running is None:
            raise RequestError("no profile is being recorded")
        found, self._running = self._running, None
        found.stop()
        assert self._folder is not None
        name = f"engine-{os.getpid()}-{time.time_ns()}.pt.trace.json.gz"
        path = Path(self._folder).absolute() / name
        found.export_chrome_trace(str(path))
        return str(path)
