"""Conformance kit for the surface *stat_logger*.

A test file of a logger subclasses `StatLoggerKit` and names the descriptor; the plugin must be
installed::

    class TestMyLogger(StatLoggerKit):
        logger = MY_LOGGER
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, EngineConfig, SamplingParams
from pegboard.api.stat_logger import StatLogger, StatLoggerContext, StepStats
from pegboard.api.stat_logger_front import FrontContext, FrontRecorder, RequestAdded
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.told import NULL_ENGINE, ended_in_all_ways, scheduled, token_batch

__all__ = ["StatLoggerKit"]

_STREAMS = 256
_QUICK = 20e-6
"""Seconds for a token, some twenty times what it should take: machines that test are busy."""
_LAST_WORDS = 4.0


class StatLoggerKit:
    """Tests of a logger; subclass it in a test file under a name that begins with ``Test``."""

    logger: StatLogger
    settings: Any = None
    """What its halves are opened with."""
    options: Mapping[str, Any] = {}
    """Further options of the engine that it is tried in."""

    def test_each_half_takes_what_it_is_told_and_closes(self) -> None:
        if self.logger.open is not None:
            recorder = self.logger.open.load()(StatLoggerContext("m", settings=self.settings))
            for step in range(3):
                recorder.record(StepStats(float(step), step, 2, 9, 2, step % 2, scheduled(2)))
            recorder.close()
        if self.logger.observe is not None:
            front = self._front()
            _live(front)
            front.close()

    def test_an_engine_without_work_is_no_trouble(self) -> None:
        front = self._front()
        front.scheduler(scheduled(0))
        started = time.monotonic()
        front.close()
        assert time.monotonic() - started < _LAST_WORDS, "it takes too long to close"

    def test_telling_is_quick(self) -> None:
        front, batch, rounds = self._front(), token_batch(_STREAMS), 50
        started = time.process_time()
        for _ in range(rounds):
            front.tokens(batch)
        spent = (time.process_time() - started) / rounds / _STREAMS
        front.close()
        assert spent < _QUICK, f"{spent * 1e6:.1f} µs for a token"

    def test_calls_come_from_several_threads_in_turn(self) -> None:
        front, faults = self._front(), list[BaseException]()

        def told() -> None:
            try:
                _live(front)
            except BaseException as error:
                faults.append(error)

        for _ in range(3):
            thread = threading.Thread(target=told)
            thread.start()
            thread.join()
        front.close()
        assert not faults, faults[0]

    def test_it_serves_in_an_engine(self, tmp_path: Path) -> None:
        options = {**NULL_ENGINE, **self.options, "stat_loggers": [self.logger.name]}
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        with LLM(str(write_tiny_model(tmp_path)), **options) as llm:
            (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
            fronts = set(llm.engine.recorders)
        assert len(output.outputs[0].token_ids) == 5
        assert fronts == ({self.logger.name} if self.logger.observe is not None else set())

    def _front(self) -> FrontRecorder:
        if self.logger.observe is None:
            pytest.skip("it has no front half")
        config = EngineConfig(model="m", num_gpu_blocks_override=16)
        context = FrontContext("m", config, 16, 64, settings=self.settings)
        front: FrontRecorder = self.logger.observe.load()(context)
        return front


def _live(front: FrontRecorder) -> None:
    """Everything that may happen, with a reset of the cache in between."""
    for number, facts in enumerate(ended_in_all_ways()):
        front.added(RequestAdded(facts.request_id, facts.arrival, facts.prompt_tokens, 1))
        front.scheduler(scheduled(number, resets=number // 3))
        front.tokens(token_batch(4))
        front.finished(facts)
    front.scheduler(scheduled(0, resets=1))
