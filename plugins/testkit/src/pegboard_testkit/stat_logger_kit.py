"""Conformance kit for the surface *stat_logger*: who is told of each step.

A test file of a logger subclasses `StatLoggerKit` and names the descriptor::

    class TestMyLogger(StatLoggerKit):
        logger = MY_LOGGER
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, EngineConfig, SamplingParams
from pegboard.api.descriptor import LazyRef
from pegboard.api.stat_logger import StatLogger, StatLoggerContext
from pegboard.api.stat_logger_front import FrontContext
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model

__all__ = ["StatLoggerKit"]


class _Timed:
    """A recorder of either half, watched while an engine tells it things."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.took: dict[str, list[float]] = defaultdict(list)
        """Seconds of each call, by method."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        method = getattr(self.inner, name)

        def timed(*values: Any) -> None:
            begin = time.perf_counter()
            method(*values)
            self.took[name].append(time.perf_counter() - begin)

        return timed


class StatLoggerKit:
    """Tests of a logger; subclass it in a test file under a name that begins with ``Test``."""

    logger: StatLogger
    step_seconds = 0.01
    """What a method may take at the median: the next step, or the readers of answers, wait for
    it."""
    close_seconds = 5.0

    @pytest.fixture
    def recorders(self, monkeypatch: pytest.MonkeyPatch) -> list[_Timed]:
        """Grows with every one that is opened, of both halves."""
        return self.watch(monkeypatch)

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> list[_Timed]:
        """What the fixture `recorders` gives."""
        made: list[_Timed] = []
        load = LazyRef.load

        def watched(reference: LazyRef) -> Any:
            loaded = load(reference)
            if reference not in (self.logger.open, self.logger.observe):
                return loaded

            def opened(ctx: StatLoggerContext | FrontContext) -> _Timed:
                made.append(_Timed(loaded(ctx)))
                return made[-1]

            return opened

        monkeypatch.setattr(LazyRef, "load", watched)
        return made

    def test_it_is_told_of_every_step_and_request_and_holds_none_up(
        self, recorders: list[_Timed], tmp_path: Path
    ) -> None:
        with self._engine(tmp_path) as llm:
            self._ask(llm)
        assert len(recorders) == self._halves()
        calls = {name: took for recorder in recorders for name, took in recorder.took.items()}
        assert all(len(recorder.took["close"]) == 1 for recorder in recorders)
        if self.logger.open is not None:
            assert len(calls["record"]) >= 6
        if self.logger.observe is not None:
            assert len(calls["added"]) == len(calls["finished"]) == 2
            assert len(calls["tokens"]) >= 6
        for name, took in calls.items():
            median = sorted(took)[len(took) // 2]
            assert name == "close" or median < self.step_seconds, f"{name} takes {median:.3f} s"

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
        inner = {id(recorder.inner) for recorder in recorders}
        assert len(inner) == len(recorders) == 2 * self._halves()

    def _halves(self) -> int:
        return (self.logger.open is not None) + (self.logger.observe is not None)

    def test_it_closes_soon_though_nothing_was_recorded(self) -> None:
        front = FrontContext("a model", EngineConfig(model="a model"), 16, 64)
        halves = ((self.logger.open, StatLoggerContext("a model")), (self.logger.observe, front))
        for reference, context in halves:
            if reference is not None:
                recorder = reference.load()(context)
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
