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
from pegboard.api.stat_logger import StatLogger
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model

__all__ = ["StatLoggerKit"]


class _Timed:
    """One half of an open logger, which is watched while an engine tells it things."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.took: list[float] = []
        self.closing: list[float] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name.startswith("_") or not callable(found):
            return found

        def timed(*given: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            answer = found(*given, **named)
            seconds = self.closing if name == "close" else self.took
            seconds.append(time.perf_counter() - begin)
            return answer

        return timed


class StatLoggerKit:
    """Tests of a logger; subclass it in a test file under a name that begins with ``Test``."""

    logger: StatLogger
    step_seconds = 0.01
    """What a call may take at the median: the next step, or the next piece of text, waits for
    it."""
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
            if reference not in (self.logger.open, self.logger.observe):
                return loaded

            def opened(ctx: Any) -> _Timed:
                made.append(_Timed(loaded(ctx)))
                return made[-1]

            return opened

        monkeypatch.setattr(LazyRef, "load", watched)
        return made

    def test_it_is_told_what_happens_and_holds_nothing_up(
        self, recorders: list[_Timed], tmp_path: Path
    ) -> None:
        with self._engine(tmp_path) as llm:
            self._ask(llm)
        assert len(recorders) == self._halves()
        for half in recorders:
            assert len(half.took) >= 2, f"{half.inner} is told next to nothing"
            median = sorted(half.took)[len(half.took) // 2]
            assert median < self.step_seconds, f"a call takes {median:.3f} s: the engine waits"

    def test_it_never_fails(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(logging.getLogger("pegboard"), "propagate", True)
        caplog.set_level(logging.WARNING, "pegboard")
        with self._engine(tmp_path) as llm:
            self._ask(llm)
        said = [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR]
        assert not said, said

    def test_each_engine_has_its_own_and_closes_it_once(
        self, recorders: list[_Timed], tmp_path: Path
    ) -> None:
        for _ in range(2):
            with self._engine(tmp_path):
                """Nothing is asked: it closes although it was told nothing."""
        assert len({id(half.inner) for half in recorders}) == 2 * self._halves()
        for half in recorders:
            (took,) = half.closing
            assert took < self.close_seconds, f"closing takes {took:.1f} s"

    def _halves(self) -> int:
        return sum(half is not None for half in (self.logger.open, self.logger.observe))

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
