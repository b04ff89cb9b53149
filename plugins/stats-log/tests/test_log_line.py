"""A line says what happened since the last one, and nothing while nothing happens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from pegboard import AsyncLLM, EngineConfig, SamplingParams
from pegboard.api.scheduler import CacheStats, SchedulerStats
from pegboard.api.stat_logger_front import FrontContext, TokenBatch
from pegboard.errors import ConfigError
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_stats_log.line import LogLine
from pegboard_stats_log.settings import Settings

LOGGER = "pegboard.plugin.stats-log"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it did not come true within 10 s"
        time.sleep(0.005)


def opened(interval: float) -> LogLine:
    return LogLine(FrontContext("m", EngineConfig(model="m"), 8, 64, 0, Settings(interval)))


def test_the_line_has_the_rates_and_the_state(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    line = opened(0.1)
    cache = CacheStats(queried_tokens=200, hit_tokens=70)
    line.scheduler(SchedulerStats(3, 1, 6, 8, 0, cache))
    line.tokens(TokenBatch(2, 4000, [0.1], [0.1], 1000, 350))
    until(lambda: said(caplog))
    first = said(caplog)[0]
    assert "3 running, 1 waiting, KV cache 75.0 %, prefix hits 35.0 %" in first
    rates = [float(part.split()[1]) for part in first.split(", ")[:2]]
    assert rates[1] == pytest.approx(4 * rates[0], rel=0.01)
    assert 1000 < rates[0] <= 10001, "1000 tokens in 0.1 s, or more where the machine is slow"
    line.close()


def test_there_is_no_line_without_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    line = opened(0.02)
    line.tokens(TokenBatch(1, 1, [], [], 0, 0))
    until(lambda: said(caplog))
    time.sleep(0.15)
    assert len(said(caplog)) == 1
    line.scheduler(SchedulerStats(running=1))
    until(lambda: len(said(caplog)) >= 3)
    line.close()
    after = len(said(caplog))
    time.sleep(0.1)
    assert len(said(caplog)) == after, "a closed logger is silent"


def test_an_engine_that_serves_says_it_unasked(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    llm = AsyncLLM(
        str(write_tiny_model(tmp_path)),
        distributed_executor_backend="null",
        max_model_len=64,
        num_gpu_blocks_override=16,
        plugin_config={"stats-log": {"interval": 0.05}},
    )

    async def ask() -> None:
        async for _ in llm.generate([5, 6, 7], params):
            pass

    asyncio.run(ask())
    until(lambda: said(caplog))
    llm.close()
    assert "0 running, 0 waiting" in said(caplog)[-1]


def test_an_interval_that_is_none_is_refused() -> None:
    for interval in (0.0, -1.0, float("inf")):
        with pytest.raises(ConfigError, match=f"interval={interval}.*above 0"):
            Settings(interval)
