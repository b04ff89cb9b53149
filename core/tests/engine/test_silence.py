"""What the log says of an engine that tells nothing."""

from __future__ import annotations

import logging
import os
import time

import pytest

from pegboard.engine.silence import SilenceWatch, processor_seconds

RUNS = {"requests": 2, "longest_prompt": 9000}


def watched(
    *, share: float | None, looks: list[float], caplog: pytest.LogCaptureFixture
) -> list[tuple[str, str]]:
    """Levels and texts of the log after looks at an engine that uses a share of a processor."""
    moment = 0.0
    watch = SilenceWatch(lambda: None if share is None else 100 + share * moment, long=60)
    with caplog.at_level(logging.INFO, "pegboard"):
        for moment in looks:
            watch.look(moment, lambda: RUNS)
    return [(record.levelname, str(vars(record))) for record in caplog.records]


def test_a_long_step_that_computes_is_a_warning_with_what_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    [(level, text)] = watched(share=0.9, looks=[1, 30, 59, 61, 62], caplog=caplog)
    assert level == "WARNING" and "computes" in text
    assert "'longest_prompt': 9000" in text and "'seconds': 61" in text


def test_an_engine_that_uses_no_processor_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    [(level, text)] = watched(share=0.0, looks=[1, 30, 61], caplog=caplog)
    assert level == "ERROR" and "may hang" in text


def test_it_is_said_again_when_the_time_has_doubled_and_anew_after_a_sign(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = [1, 61, 100, 121, 130, 0, 5, 61, 62]
    assert len(watched(share=1.0, looks=looks, caplog=caplog)) == 3


def test_where_nobody_tells_the_time_nothing_is_claimed(caplog: pytest.LogCaptureFixture) -> None:
    [(level, text)] = watched(share=None, looks=[1, 61], caplog=caplog)
    assert level == "WARNING" and "hang" not in text and "computes" not in text


def test_the_time_of_a_process_grows_when_it_computes() -> None:
    before = processor_seconds([os.getpid()])
    if before is None:
        pytest.skip("this system has no /proc")
    end = time.process_time() + 0.05
    while time.process_time() < end:
        pass
    after = processor_seconds([os.getpid()])
    assert after is not None and 0.03 <= after - before < 5
    assert processor_seconds([2**22 + 1]) is None
