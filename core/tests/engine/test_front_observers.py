"""What stat loggers are told of requests in the front end, and who is told."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from pegboard import LLM, AsyncLLM, EngineConfig, SamplingParams
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.stat_logger import StatLogger
from pegboard.api.stat_logger_front import FrontContext, RequestAdded, RequestFacts, TokenBatch
from pegboard.engine.open_watch import decide_observers
from pegboard.errors import (
    EngineDeadError,
    MissingPluginError,
    PluginError,
    RequestError,
    SelectionError,
)
from pegboard.testing.distributions import installed

FAIL, SLOW = 66, [5, 6, 7]
PARAMS = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True)
SMALL: dict[str, Any] = {
    "distributed_executor_backend": "null",
    "max_model_len": 64,
    "num_gpu_blocks_override": 16,
}


class Notes:
    """Keeps everything, in order."""

    def __init__(self, ctx: FrontContext) -> None:
        self.ctx = ctx
        self.told: list[tuple[str, Any]] = []
        ctx.metrics.counter("opened", "How often notes were opened").add()

    def added(self, request: RequestAdded) -> None:
        self.told.append(("added", request))

    def tokens(self, batch: TokenBatch) -> None:
        self.told.append(("tokens", batch))

    def finished(self, facts: RequestFacts) -> None:
        self.told.append(("finished", facts))

    def scheduler(self, stats: SchedulerStats) -> None:
        self.told.append(("scheduler", stats))

    def close(self) -> None:
        self.told.append(("close", None))

    def of(self, what: str) -> list[Any]:
        return [value for kind, value in self.told if kind == what]


class Torn(Notes):
    """Fails whatever it is told."""

    def added(self, request: RequestAdded) -> None:
        raise ZeroDivisionError("no paper")

    tokens = finished = scheduler = added  # type: ignore[assignment]


HOOKS = """
import sys
from pegboard.api.hooks import hookimpl
from pegboard.api.stat_logger import StatLogger
from pegboard.api.tracer import Tracer

PEGBOARD_API = {"stat_logger": 0, "tracer": 0}
PEGBOARD_PROCESSES = ("front",)


@hookimpl
def pegboard_stat_loggers():
    return [
        StatLogger("notes", observe="notes_of_tests:Notes", default=True),
        StatLogger("torn", observe="notes_of_tests:Torn"),
    ]


@hookimpl
def pegboard_tracers():
    return [Tracer("one", "notes_of_tests:Notes"), Tracer("two", "notes_of_tests:Notes")]
"""


@pytest.fixture(scope="module")
def loggers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution with the loggers, for the front end only."""
    folder = tmp_path_factory.mktemp("notes")
    with pytest.MonkeyPatch.context() as patch, installed(folder, "notes", "notes_plugin", HOOKS):
        patch.setitem(sys.modules, "notes_of_tests", sys.modules[__name__])
        yield


@pytest.fixture
def serving(loggers: None, moody: dict[str, Any]) -> Iterator[AsyncLLM]:
    """An engine that samples letters, 2 ms a step, and fails at the prompt 66."""
    llm = AsyncLLM(**moody, stat_loggers=["notes"])
    yield llm
    llm.close()


def notes_of(llm: Any) -> Notes:
    found = llm.recorders["notes"]
    assert isinstance(found, Notes)
    return found


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_the_figures_are_those_of_what_users_got(loggers: None, tiny_path: str) -> None:
    with LLM(tiny_path, **SMALL, stat_loggers=["notes"]) as llm:
        llm.generate([[5, 6, 7], [8, 9]], PARAMS, use_tqdm=False)
        notes = notes_of(llm.engine)
        assert not notes.of("close") and notes.ctx.num_blocks == 16
        assert notes.ctx.max_model_len == 64 and notes.ctx.model == tiny_path
    batches = notes.of("tokens")
    assert sum(batch.tokens for batch in batches) == 10
    assert sum(batch.streams for batch in batches) == 10
    assert sum(len(batch.first) for batch in batches) == 2
    assert sum(len(batch.intervals) for batch in batches) == 8
    assert sum(batch.prompt_tokens for batch in batches) == 5
    assert all(value >= 0 for batch in batches for value in (*batch.first, *batch.intervals))
    assert [(item.prompt_tokens, item.n) for item in notes.of("added")] == [(3, 1), (2, 1)]
    facts = {item.request_id: item for item in notes.of("finished")}
    assert len(facts) == len(notes.of("finished")) == 2
    assert {(item.generated, item.reason, item.max_tokens) for item in facts.values()} == {
        ((5,), "length", 5)
    }
    order = [kind for kind, _ in notes.told if kind in ("tokens", "finished", "close")]
    assert order[-4:] == ["tokens", "finished", "finished", "close"]
    last = notes.of("scheduler")[-1]
    assert (last.running, last.waiting) == (0, 0) and last.cache.queried_tokens == 5


def test_the_phases_of_a_request_sum_to_its_time(serving: AsyncLLM) -> None:
    async def ask() -> None:
        async for _ in serving.generate(SLOW, PARAMS):
            pass

    run(ask())
    (facts,) = notes_of(serving).of("finished")
    phases = facts.queue + facts.prefill + facts.decode
    assert 0.008 < facts.decode <= phases <= facts.seconds + 0.001
    assert facts.seconds - phases < 1.0, "a busy machine gets a second"
    assert facts.queue + facts.prefill <= facts.first_token + 0.001 <= facts.seconds + 0.002


def test_sequences_of_one_request_are_one_request(loggers: None, tiny_path: str) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=4, ignore_eos=True, n=3, seed=1)
    with LLM(tiny_path, **SMALL, stat_loggers=["notes"]) as llm:
        llm.generate([5, 6, 7], params, use_tqdm=False)
        notes = notes_of(llm.engine)
    (facts,) = notes.of("finished")
    assert facts.generated == (4, 4, 4) and facts.reasons == ("length",) * 3
    assert notes.of("added")[0].n == 3
    batches = notes.of("tokens")
    assert sum(batch.tokens for batch in batches) == 12
    assert sum(len(batch.first) for batch in batches) == 1
    assert sum(batch.prompt_tokens for batch in batches) == 3
    assert sum(len(batch.intervals) for batch in batches) == 9


def test_preemptions_and_hits_are_told(loggers: None, tiny_path: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    options = {**SMALL, "num_gpu_blocks_override": 6, "watermark": 0.0}
    with LLM(tiny_path, **options, stat_loggers=["notes"]) as llm:
        prompts = [list(range(5, 21)), list(range(30, 46))]
        llm.generate(prompts, params, use_tqdm=False)
        llm.generate(list(range(5, 22)), PARAMS, use_tqdm=False)
        notes = notes_of(llm.engine)
    told = sum(item.preemptions for item in notes.of("finished"))
    assert told == notes.of("scheduler")[-1].preemptions > 0
    assert notes.of("finished")[-1].cached_tokens == 16
    assert notes.of("tokens")[-5].cached_tokens == 16


def test_every_end_is_told_once(serving: AsyncLLM) -> None:
    async def leave() -> None:
        async for _ in serving.generate(SLOW, LONG, "left"):
            break

    async def late() -> None:
        async for _ in serving.generate(SLOW, LONG, "late", deadline=0.05):
            pass

    async def stopped() -> None:
        stream = await serving.add(SLOW, LONG, "stopped")
        await serving.abort("stopped")
        await serving.abort("stopped")
        assert [state async for state in stream][-1].finished

    async def refused() -> None:
        with pytest.raises(RequestError):
            await serving.add([], LONG, "refused")
        live = await serving.add(SLOW, LONG, "twice")
        with pytest.raises(RequestError, match="in use"):
            await serving.add(SLOW, LONG, "twice")
        live.close()
        live.close()

    async def all_ends() -> None:
        await asyncio.gather(leave(), late(), stopped(), refused())
        await asyncio.sleep(0.05)

    run(all_ends())
    notes = notes_of(serving)
    assert [item.request_id for item in notes.of("added")].count("twice") == 1
    ends = sorted((item.request_id, item.reason) for item in notes.of("finished"))
    assert ends == [(name, "abort") for name in ("late", "left", "stopped", "twice")]
    assert all(sum(item.generated) < 2000 for item in notes.of("finished"))


def test_the_death_of_the_engine_ends_requests_with_an_error(serving: AsyncLLM) -> None:
    async def die() -> None:
        living = [await serving.add(SLOW, LONG) for _ in range(3)]
        living.append(await serving.add([FAIL], PARAMS))
        for stream in living:
            with pytest.raises(EngineDeadError):
                async for _ in stream:
                    pass
            stream.close()
        with pytest.raises(EngineDeadError):
            await serving.add(SLOW, LONG)

    run(die())
    serving.close()
    notes = notes_of(serving)
    assert [item.reason for item in notes.of("finished")] == ["error"] * 4
    last = notes.of("scheduler")[-1]
    assert (last.running, last.waiting, last.used_blocks) == (0, 0, 0)
    assert len(notes.of("added")) == 4 and notes.told[-1] == ("close", None)


def test_a_logger_that_fails_is_complained_of_once_and_the_others_are_told(
    loggers: None, tiny_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "pegboard.engine")
    with LLM(tiny_path, **SMALL, stat_loggers=["torn", "notes"]) as llm:
        llm.generate([5, 6, 7], PARAMS, use_tqdm=False)
        notes = notes_of(llm.engine)
    assert len(notes.of("finished")) == 1
    assert caplog.text.count("a stat logger failed") == 1


def test_loggers_that_are_on_by_default_serve_where_nothing_else_is_said(
    loggers: None, moody: dict[str, Any], tiny_path: str
) -> None:
    serving = AsyncLLM(**moody)
    rows = {row["id"]: row["used"] for row in serving.plugins()}
    figures = run(serving.plugin_metrics())
    serving.close()
    assert "notes" in serving.recorders and "torn" not in serving.recorders
    assert rows["notes"] == ["stat_logger:notes"]
    opened = {item.name: item for item in figures["front"]}["pegboard_plugin_notes_opened"]
    assert opened.value == 1 and opened.kind == "counter"
    assert "pegboard_plugin_notes_opened" not in {item.name for item in figures["engine"]}
    with LLM(tiny_path, **SMALL) as llm:
        assert not llm.engine.recorders
    for given, wanted in ((None, {"notes"}), ([], set()), (["torn"], {"torn"})):
        config = EngineConfig.from_options({**moody, "stat_loggers": given})
        decided = decide_observers(serving.board, config, serving=True).stat_loggers or ()
        assert {"notes", "torn"} & {*decided} == wanted, "others may be installed"


def test_a_tracer_is_told_of_ends_with_the_headers_of_the_trace(
    loggers: None, moody: dict[str, Any]
) -> None:
    headers = {"Traceparent": "00-1-2-01", "tracestate": "a=b", "cookie": "secret"}

    async def ask(llm: AsyncLLM) -> None:
        async for _ in llm.generate(SLOW, PARAMS, trace_headers=headers):
            pass
        with pytest.raises(RequestError, match="trace_headers='x'"):
            await llm.add(SLOW, PARAMS, trace_headers="x")  # type: ignore[arg-type]

    llm = AsyncLLM(**moody, stat_loggers=["notes"], tracer="one", otlp_traces_endpoint="there")
    run(ask(llm))
    llm.close()
    (facts,) = notes_of(llm).of("finished")
    assert facts.trace_headers == {"traceparent": "00-1-2-01", "tracestate": "a=b"}
    assert llm.config.tracer == "one"


def test_which_tracer_must_be_clear(loggers: None, tiny_path: str) -> None:
    with pytest.raises(SelectionError, match=r"name one as tracer: .*one, two"):
        LLM(tiny_path, **SMALL, otlp_traces_endpoint="there")
    with pytest.raises(MissingPluginError, match="tracer 'three'"):
        LLM(tiny_path, **SMALL, tracer="three")


def test_a_logger_without_any_half_is_refused() -> None:
    with pytest.raises(PluginError, match="'idle' needs open, observe or both"):
        StatLogger("idle")
