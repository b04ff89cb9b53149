"""Stat loggers are told of each step, and their faults are theirs."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.api.stat_logger import StatLogger, StatLoggerContext, StepStats
from pegboard.errors import ConfigError, MissingPluginError
from pegboard.plugins import Board, load_plugins
from pegboard.testing.checkpoints import write_tiny_model

SMALL = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16}
PARAMS = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


class Diary:
    """Keeps everything."""

    opened: list[Diary] = []  # noqa: RUF012

    def __init__(self, ctx: StatLoggerContext) -> None:
        self.model, self.steps, self.closed = ctx.model, list[StepStats](), 0
        self.opened.append(self)

    def record(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def close(self) -> None:
        self.closed += 1


class Broken(Diary):
    """Fails whatever it is asked."""

    def record(self, stats: StepStats) -> None:
        raise ZeroDivisionError("no ink")

    def close(self) -> None:
        raise ZeroDivisionError("no end")


def refuse(ctx: StatLoggerContext) -> Any:
    raise ConfigError("no paper")


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    module = types.ModuleType("loggers_of_tests")
    vars(module).update(Diary=Diary, Broken=Broken, refuse=refuse)
    monkeypatch.setitem(sys.modules, "loggers_of_tests", module)
    names = {"diary": "Diary", "broken": "Broken", "refusing": "refuse"}
    made = [StatLogger(name, f"loggers_of_tests:{made}") for name, made in names.items()]
    Diary.opened.clear()
    yield load_plugins(extra=[("stat_logger", one) for one in made])
    Diary.opened.clear()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = write_tiny_model(tmp_path_factory.mktemp("model"))
    return str(path)


def test_the_figures_add_up_to_what_was_done(board: Board, model: str) -> None:
    with LLM(model, board=board, **SMALL, stat_loggers=["diary"]) as llm:
        llm.generate([[5, 6, 7], [8, 9]], PARAMS, use_tqdm=False)
        (diary,) = Diary.opened
        assert not diary.closed and diary.model == model
    steps = diary.steps
    assert diary.closed == 1
    assert sum(step.sampled for step in steps) == 10
    assert sum(step.tokens for step in steps) == 3 + 2 + 2 * 4
    assert max(step.rows for step in steps) == 2
    assert [step.step_id for step in steps] == sorted({step.step_id for step in steps})
    assert steps[0].scheduler.running == 2 and steps[-1].scheduler.running == 0
    assert not any(step.failed for step in steps)


def test_a_logger_that_fails_is_told_once_and_the_rest_goes_on(
    board: Board, model: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "pegboard.engine")
    with LLM(model, board=board, **SMALL, stat_loggers=["broken", "diary"]) as llm:
        output = llm.generate([5, 6, 7], PARAMS, use_tqdm=False)[0].outputs[0]
    assert len(output.token_ids) == 5
    assert sum(step.sampled for step in Diary.opened[1].steps) == 5
    assert caplog.text.count("a stat logger failed") == 1


def test_what_cannot_be_opened_is_refused_and_the_others_are_closed(
    board: Board, model: str
) -> None:
    with pytest.raises(ConfigError, match="no paper"):
        LLM(model, board=board, **SMALL, stat_loggers=["diary", "refusing"])
    assert [diary.closed for diary in Diary.opened] == [1]
    with pytest.raises(MissingPluginError, match="stat logger 'absent'"):
        LLM(model, board=board, **SMALL, stat_loggers=["absent"])
