"""Conformance kit for the surface *stat_logger*: who is told of each step.

A test file of a logger subclasses `StatLoggerKit` and names the descriptor::

    class TestMyLogger(StatLoggerKit):
        logger = MY_LOGGER
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, EngineConfig, SamplingParams
from pegboard.api.descriptor import LazyRef
from pegboard.api.stat_logger import StatLogger, StatLoggerContext, StatRecorder, StepStats
from pegboard.api.stat_logger_front import FrontContext, FrontRecorder, RequestAdded
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.own_settings import OwnSettings
from pegboard_testkit.told import ended_in_all_ways, scheduled, token_batch

__all__ = ["StatLoggerKit"]

STREAMS = 256
TOKEN_SECONDS = 20e-6
"""Of a processor, some twenty times what a token should take: machines that test are busy."""


class _Timed:
    """A recorder of either half, watched while an engine tells it things."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.took: dict[str, list[float]] = defaultdict(list)
        """Seconds of each call, by method."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not callable(found):
            return found

        def timed(*values: Any) -> Any:
            begin = time.perf_counter()
            answer = found(*values)
            self.took[name].append(time.perf_counter() - begin)
            return answer

        return timed


class StatLoggerKit(OwnSettings):
    """Tests of a logger; subclass it in a test file under a name that begins with ``Test``."""

    logger: StatLogger
    """The descriptor."""
    step_seconds = 0.01
    """What a method may take at the median: the next step, or the readers of answers, wait for
    it."""
    close_seconds = 5.0
    """What `close` may take."""

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
        for recorder in self._opened():
            begin = time.perf_counter()
            recorder.close()
            took = time.perf_counter() - begin
            assert took < self.close_seconds, f"closing takes {took:.1f} s"

    def test_it_takes_all_that_may_happen_from_one_thread_after_another(self) -> None:
        for recorder in self._opened():
            told = _tell_steps if hasattr(recorder, "record") else _tell_requests
            for _ in range(3):
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(told, recorder).result()
            recorder.close()

    def test_tokens_are_taken_quickly(self) -> None:
        batch, rounds = token_batch(STREAMS), 50
        for recorder in self._opened():
            if not hasattr(recorder, "record"):
                begin = time.process_time()
                for _ in range(rounds):
                    recorder.tokens(batch)
                took = (time.process_time() - begin) / rounds / STREAMS
                assert took < TOKEN_SECONDS, f"{took * 1e6:.1f} µs for a token"
            recorder.close()

    def _opened(self) -> list[Any]:
        """Each half that there is, outside of an engine."""
        config = EngineConfig(model="a model", num_gpu_blocks_override=16)
        own = self.handed("stat_logger", self.logger.name)
        front = FrontContext("a model", config, 16, 64, **own)
        step = StatLoggerContext("a model", **own)
        halves = ((self.logger.open, step), (self.logger.observe, front))
        return [ref.load()(context) for ref, context in halves if ref is not None]

    @contextmanager
    def _engine(self, folder: Path) -> Iterator[LLM]:
        model = folder / "model"
        if not model.exists():
            write_tiny_model(model)
        options: Any = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 20}
        board = board_with("stat_logger", self.logger, settings=self.settings)
        names = [self.logger.name]
        with LLM(str(model), board=board, platform="null", stat_loggers=names, **options) as llm:
            yield llm

    def _ask(self, llm: LLM) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        llm.generate([[5, 6, 7], [8, 9]], params, use_tqdm=False)


def _tell_steps(recorder: StatRecorder) -> None:
    for step in range(3):
        recorder.record(StepStats(float(step), step, 2, 9, 2, step % 2, scheduled(2)))


def _tell_requests(recorder: FrontRecorder) -> None:
    """All ways to end, with a reset of the cache in between."""
    for number, facts in enumerate(ended_in_all_ways()):
        recorder.added(RequestAdded(facts.request_id, facts.arrival, facts.prompt_tokens, 1))
        recorder.scheduler(scheduled(number, resets=number // 3))
        recorder.tokens(token_batch(4))
        recorder.finished(facts)
    recorder.scheduler(scheduled(0, resets=1))
