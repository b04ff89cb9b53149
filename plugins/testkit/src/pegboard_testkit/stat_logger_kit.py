"""Conformance kit for the surface *stat_logger*: who is told of each step.

A test file of a logger subclasses `StatLoggerKit` and names the descriptor::

    class TestMyLogger(StatLoggerKit):
        logger = MY_LOGGER
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.api.descriptor import LazyRef
from pegboard.api.stat_logger import StatLogger, StatLoggerContext, StepStats
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model

__all__ = ["StatLoggerKit"]


class _Timed:
    """A recorder that is watched while an engine tells it of its steps."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.took: list[float] = []
        self.closed = 0

    def record(self, stats: StepStats) -> None:
        begin = time.perf_counter()
        self.inner.record(stats)
        self.took.append(time.perf_counter() - begin)

    def close(self) -> None:
        self.closed += 1
        self.inner.close()


class StatLoggerKit:
    """Tests of a logger; subclass it in a test file under a name that begins with ``Test``."""

    logger: StatLogger
    step_seconds = 0.01
    """What `record` may take at the median: the next step waits for it."""
    close_seconds = 5.0

    @pytest.fixture
    def recorders(self, monkeypatch: pytest.MonkeyPatch) -> list[_Timed]:
        """Grows with every one that is opened."""
        return self.watch(monkeypatch)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> list[_Timed]:
        """What the fixture `recorders` gives."""
        made: list[_Timed] = []
        load = LazyRef.load

        def watched(reference: LazyRef) -> Any:
            loaded = load(reference)
            if reference != self.logger.open:
                return loaded

            def opened(ctx: StatLoggerContext) -> _Timed:
                made.append(_Timed(loaded(ctx)))
                return made[-1]

            return opened

        monkeypatch.setattr(LazyRef, "load", watched)
        return made

    def test_it_is_told_of_every_step_and_holds_none_up(
        self, recorders: list[_Timed], tmp_path: Path
    ) -> None:
        with self._engine(tmp_path) as llm:
            self._ask(llm)
        (recorder,) = recorders
        assert len(recorder.took) >= 6 and recorder.closed == 1
        median = sorted(recorder.took)[len(recorder.took) // 2]
        assert median < self.step_seconds, f"record takes {median:.3f} s: the engine waits"

    def test_it_never_fails(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger("pegboard"), "propagate", True)
        caplog.set_level(logging.WARNING, "pegboard")
        with self._engine(tmp_path) as llm:
            self._ask(llm)
        said = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
        assert not said, said

    def test_each_engine_has_its_own(self, recorders: list[_Timed], tmp_path: Path) -> None:
        for _ in range(2):
            with self._engine(tmp_path) as llm:
                self._ask(llm)
        one, other = recorders
        assert one.inner is not other.inner

    def test_it_closes_soon_though_nothing_was_recorded(self) -> None:
        recorder = self.logger.open.load()(StatLoggerContext("a model"))
        begin = time.perf_counter()
        recorder.close()
        took = time.perf_counter() - begin
        assert took < self.close_seconds, f"closing takes {took:.1f} s"

    @contextmanager
    def _engine(self, folder: Path) -> Iterator[LLM]:
        model = folder / "model"
        if not model.exists():
            write_tiny_model(model)
        options: Any = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 20}
        board = board_with("stat_logger", self.logger)
        names = [self.logger.name]
        with LLM(str(model), board=board, platform="null", stat_loggers=names, **options) as llm:
            yield llm

    def _ask(self, llm: LLM) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        llm.generate([[5, 6, 7], [8, 9]], params, use_tqdm=False)
