"""Which scheduler an engine gets, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pegboard.api.scheduler import Scheduler, SchedulerClass
from pegboard.api.views import EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_core
from pegboard.engine.choose_scheduler import find_scheduler
from pegboard.engine.core import EngineCore
from pegboard.errors import ConfigError, DuplicateError, MissingPluginError, PluginError
from pegboard.plugins import Board, build_board
from pegboard.scheduler import TokenBudgetScheduler
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import toy_request

MODULE = '''
class LongestFirst:
    """Puts its own priorities on requests; the rest is the core's scheduler."""

    def __init__(self, ctx):
        self.inner = ctx.build("token-budget")
        self.context = ctx.config.max_model_len

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def add(self, request):
        request.priority = -len(request.prompt_ids)
        self.inner.add(request)


def nothing(ctx):
    return object()
'''


@pytest.fixture(autouse=True)
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "foreign_scheduler.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def board(*extra: SchedulerClass, **environ: str) -> Board:
    return build_board(environ=environ, extra=[("scheduler", item) for item in extra])


def core(pegs: Board | None, **options: Any) -> EngineCore:
    config = EngineConfig(model="toy", num_gpu_blocks_override=64, max_num_seqs=1, **options)
    return build_core(config, ToyExecutor(), 256, pegs)[0]


def order_of_endings(engine: EngineCore, requests: Iterable[EngineRequest]) -> list[str]:
    ended = []
    for request in requests:
        engine.add(request)
    while engine.has_work():
        for output in engine.step():
            if output.finish_reason is not None:
                ended.append(output.request_id)
    return ended


def requests() -> list[EngineRequest]:
    return [toy_request(str(length), [1] * length, 3) for length in (2, 9, 5)]


def test_the_cores_own_scheduler_is_on_the_board_and_the_default() -> None:
    pegs = board()
    assert "token-budget" in pegs.registry("scheduler").names()
    assert type(core(pegs).scheduler) is TokenBudgetScheduler
    assert type(core(pegs, scheduler_cls="token-budget").scheduler) is TokenBudgetScheduler
    assert type(core(None).scheduler) is TokenBudgetScheduler


@pytest.mark.parametrize("named", ["longest-first", "foreign_scheduler:LongestFirst"])
def test_a_scheduler_of_somebody_else_runs(named: str) -> None:
    pegs = board(SchedulerClass("longest-first", "foreign_scheduler:LongestFirst"))
    engine = core(pegs, scheduler_cls=named, scheduling_policy="priority")
    assert type(engine.scheduler).__name__ == "LongestFirst"
    assert engine.scheduler.context == 256, "the context is decided"  # type: ignore[attr-defined]
    assert order_of_endings(engine, requests()) == ["9", "5", "2"]
    usual = core(pegs, scheduling_policy="priority")
    assert order_of_endings(usual, requests()) == ["2", "9", "5"]


def test_a_name_that_nobody_registered_is_refused_with_those_there_are() -> None:
    with pytest.raises(MissingPluginError, match=r"scheduler 'token-budgets'.*scheduler_cls"):
        core(board(), scheduler_cls="token-budgets")


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(DuplicateError, match="token-budget"):
        board(SchedulerClass("token-budget", "foreign_scheduler:LongestFirst"))


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("foreign_scheduler:Missing", "no attribute 'Missing'"),
        ("foreign_scheduler:not valid", "not of the form"),
        ("os:path", "os:path is a module, which makes no scheduler"),
        ("builtins:dict", "builtins:dict made no scheduler: TypeError"),
        ("foreign_scheduler:nothing", r"no scheduler: it lacks add, abort, finish, plan"),
    ],
)
def test_a_path_that_leads_to_no_scheduler_is_refused(named: str, said: str) -> None:
    with pytest.raises(PluginError, match=said):
        core(board(), scheduler_cls=named)


@pytest.mark.parametrize("named", ["no-such", "no_such_module:Thing"])
def test_what_is_not_there_is_refused_before_anything_is_loaded(named: str) -> None:
    class Loaded(ToyExecutor):
        def load(self) -> None:
            raise AssertionError("the model was loaded")

    config = EngineConfig(model="toy", num_gpu_blocks_override=64, scheduler_cls=named)
    for pegs in (board(), board(VLLM_PLUGINS="")):
        with pytest.raises(MissingPluginError, match=r"no.such"):
            build_core(config, Loaded(), 256, pegs)


def test_the_allowlist_governs_schedulers_named_by_path() -> None:
    with pytest.raises(ConfigError, match=r"VLLM_PLUGINS='llama' leaves its distribution out"):
        core(board(VLLM_PLUGINS="llama"), scheduler_cls="foreign_scheduler:LongestFirst")
    own = core(board(VLLM_PLUGINS=""), scheduler_cls="pegboard.scheduler:build_scheduler")
    assert type(own.scheduler) is TokenBudgetScheduler


def test_a_scheduler_that_declares_no_transfers_is_refused_with_a_connector() -> None:
    pegs = board(SchedulerClass("longest-first", "foreign_scheduler:LongestFirst"))
    transfers = {"kv_connector": "multi", "kv_role": "kv_both"}
    config = EngineConfig(model="m", scheduler_cls="longest-first", kv_transfer_config=transfers)
    with pytest.raises(ConfigError, match=r"'longest-first' is not allowed together with kv_tr"):
        find_scheduler(pegs, config)


def test_the_contract_is_what_the_cores_scheduler_has() -> None:
    methods = {name for name in vars(Scheduler) if not name.startswith("_")}
    own = {name for name in vars(TokenBudgetScheduler) if not name.startswith("_")}
    assert methods <= own


def test_requests_pass_unchanged_to_the_runner() -> None:
    engine = core(board(), scheduler_cls="foreign_scheduler:LongestFirst")
    request = toy_request("a", [5, 6, 7], 4)
    engine.add(msgspec.structs.replace(request))
    tokens = []
    while engine.has_work():
        for output in engine.step():
            tokens += output.token_ids
    assert tokens == toy_generate(request)
