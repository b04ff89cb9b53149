"""Profiles of the engine's process."""

from __future__ import annotations

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from pegboard.engine.profiling import PROFILE_VARIABLE, EngineProfiler
from pegboard.errors import RequestError, UnsupportedError


@pytest.mark.accept  # starting the profiler takes seconds
def test_what_runs_between_start_and_stop_is_in_the_trace(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    steps = ThreadPoolExecutor(1)
    steps.submit(len, "").result()  # the thread is older than the profile
    profiler = EngineProfiler(environ={PROFILE_VARIABLE: str(folder)})
    with pytest.raises(RequestError, match="no profile"):
        profiler.stop()
    profiler.start()
    with pytest.raises(RequestError, match="already"):
        profiler.start()
    steps.submit(torch.mm, torch.ones(2, 2), torch.ones(2, 2)).result()
    path = Path(profiler.stop())
    assert path.parent == folder
    with gzip.open(path) as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert "aten::mm" in names
    with pytest.raises(RequestError, match="no profile"):
        profiler.stop()


def test_without_a_folder_or_with_ranks_elsewhere_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=PROFILE_VARIABLE):
        EngineProfiler(environ={}).start()
    with pytest.raises(UnsupportedError, match="2 ranks"):
        EngineProfiler(2, {PROFILE_VARIABLE: str(tmp_path)}).start()
