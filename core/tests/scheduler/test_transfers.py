"""The KV connector in the scheduler: who waits, what is told, who owns which blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from pegboard.api.connector import (
    Keep,
    KVTransferConfig,
    Later,
    Now,
    SchedulerHalf,
    StepOrder,
    StepView,
)
from pegboard.api.step import StepResult
from pegboard.errors import PluginError
from pegboard.plugins import Board, build_board
from pegboard.scheduler.views import ReadOnly
from pegboard.testing.connectors import SCRIPTED_CONNECTOR
from pegboard.testing.scripted_connector import Script
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_connected import Clock, InsistentHalf, connected_engine
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_paged import Faults, PagedToyExecutor

SYNCHRONOUS = attrs.evolve(
    SCRIPTED_CONNECTOR,
    name="synchronous",
    abilities=attrs.evolve(SCRIPTED_CONNECTOR.abilities, asynchronous=False),
)
PROMPT = list(range(50))


@pytest.fixture(scope="module")
def board() -> Board:
    offered = [("connector", SCRIPTED_CONNECTOR), ("connector", SYNCHRONOUS)]
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=offered)


@pytest.fixture
def make(board: Board) -> Callable[..., ToyEngine]:
    def build(script: Script, policy: str = "recompute", **options: Any) -> ToyEngine:
        config = KVTransferConfig(
            kv_connector=options.pop("connector", "scripted"),
            kv_connector_extra_config={"script": script},
            kv_load_failure_policy=policy,
        )
        return connected_engine(board, config, **{"block_size": 8, **options})

    return build


def listening(engine: ToyEngine) -> list[StepView]:
    """All views that the connector gets from now on."""
    views: list[StepView] = []
    assert engine.connected is not None
    half = engine.connected.half
    assert isinstance(half, InsistentHalf)
    inner = half.half
    step = inner.step

    def listen(view: StepView) -> StepOrder:
        views.append(view)
        return step(view)

    inner.step = listen  # type: ignore[method-assign]
    return views


def replace(engine: ToyEngine, **methods: Any) -> None:
    """Give the connector other methods."""
    assert engine.connected is not None and isinstance(engine.connected.half, InsistentHalf)
    for name, method in methods.items():
        setattr(engine.connected.half.half, name, method)


def test_a_request_that_is_pending_steps_aside_and_others_start(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    filled.outcomes, filled.delay = ("pending",), 9
    engine = make(filled)
    engine.add(toy_request("known", PROMPT, 4))
    engine.add(toy_request("other", [80] * 20, 4))
    engine.step()
    assert engine.told["other"].token_ids, "the first one held up the second"
    assert not engine.told["known"].token_ids
    engine.run()
    assert engine.told["known"].token_ids == toy_generate(toy_request("known", PROMPT, 4))


def test_a_request_waits_for_its_load_while_others_run(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    filled.outcomes, filled.delay = ("later",), 5
    engine = make(filled)
    engine.add(toy_request("later", PROMPT, 4))
    engine.add(toy_request("other", [80] * 20, 30))
    for _ in range(4):
        engine.step()
    assert len(engine.told["other"].token_ids) == 4
    assert not engine.told["later"].token_ids
    assert engine.scheduler.stats().waiting == 1
    engine.run()
    assert engine.told["later"].last.cached_tokens == 48


def test_the_blocks_of_an_aborted_load_come_back_with_the_report_and_not_before(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    filled.outcomes, filled.delay = ("later",), 6
    engine = make(filled)
    views = listening(engine)
    engine.add(toy_request("gone", PROMPT, 4))
    engine.step()
    (load,) = views[0].loads
    engine.abort("gone")
    engine.step()
    assert engine.scheduler.stats().used_blocks == 6
    assert views[1].dropped == (load.load_id,)
    assert views[1].finished == ("gone",)
    assert not engine.scheduler.reset_prefix_cache(), "a block in use was forgotten"
    assert engine.scheduler.has_work()
    engine.run()
    assert engine.scheduler.stats().used_blocks == 0


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_load_that_is_never_reported_fails_when_its_time_is_up(
    make: Callable[..., ToyEngine], filled: Script, policy: str
) -> None:
    filled.outcomes, filled.delay, filled.timeout = ("later",), 10**6, 30.0
    clock = Clock()
    engine = make(filled, policy, clock=clock)
    engine.add(toy_request("r", PROMPT, 4))
    for _ in range(5):
        engine.step()
    clock.now = 29.0
    engine.step()
    assert engine.told["r"].last is None
    clock.now = 30.0
    engine.run()
    assert engine.told["r"].finish_reason == ("length" if policy == "recompute" else "error")
    assert engine.scheduler.stats().used_blocks == 0


def test_a_load_between_steps_is_not_shared_before_it_is_over(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    filled.outcomes, filled.delay = ("later", "now"), 5
    engine = make(filled)
    engine.add(toy_request("later", PROMPT, 4))
    engine.step()
    engine.add(toy_request("now", PROMPT, 4))
    engine.step()
    assert engine.scheduler.stats().used_blocks >= 12, "a block was shared while it was loaded"
    engine.run()
    for name in ("later", "now"):
        assert engine.told[name].token_ids == toy_generate(toy_request(name, PROMPT, 4))


def test_kept_blocks_are_the_connectors_until_they_are_sent(
    make: Callable[..., ToyEngine],
) -> None:
    script = Script(keeps=True, delay=4)
    engine = make(script)
    engine.add(toy_request("r", PROMPT, 4))
    while engine.told["r"].last is None or engine.told["r"].finish_reason is None:
        engine.step()
    last = engine.told["r"].last
    assert last.kv_transfer is not None and "keep" in last.kv_transfer
    engine.step()
    assert engine.scheduler.stats().used_blocks == 7
    assert not engine.scheduler.reset_prefix_cache()
    engine.run()
    assert engine.scheduler.stats().used_blocks == 0


def test_kept_blocks_come_back_when_their_time_is_up(make: Callable[..., ToyEngine]) -> None:
    clock = Clock()
    engine = make(Script(keeps=True, delay=10**6, timeout=5.0), clock=clock)
    engine.add(toy_request("r", PROMPT, 4))
    for _ in range(20):
        engine.step()
    assert engine.scheduler.has_work()
    clock.now = 5.0
    engine.run()
    assert engine.scheduler.stats().used_blocks == 0


def test_filled_blocks_stay_until_the_step_that_may_save_them_is_over(
    make: Callable[..., ToyEngine],
) -> None:
    engine = make(Script())
    views = listening(engine)
    engine.add(toy_request("r", list(range(24)), 1))
    engine.step()
    assert not views[0].filled
    assert engine.scheduler.stats().used_blocks == 3, "the last blocks are still to be saved"
    engine.step()
    assert [piece.entry for piece in views[1].filled] == [0, 1, 2]
    assert engine.scheduler.stats().used_blocks == 0
    assert not engine.scheduler.has_work()


def test_a_step_is_told_as_it_was_planned(make: Callable[..., ToyEngine]) -> None:
    engine = make(Script(), blocks=13, watermark=0.0, max_num_batched_tokens=16)
    views = listening(engine)
    for name in ("a", "b"):
        engine.add(toy_request(name, [ord(name) - 97] * 20, 50))
    engine.run()
    assert views[0].request_ids == ("a",)
    assert (views[0].starts, views[0].counts) == ((0,), (16,))
    (admitted,) = views[0].admitted
    assert admitted.request.prompt_ids == [0] * 20 and not admitted.resumed
    assert len(admitted.blocks.groups[0]) == 2
    assert views[1].new_blocks[0].groups == (admitted_blocks(views[1], "a"),)
    preempted = [name for view in views for name in view.preempted]
    resumed = [a.request.request_id for view in views for a in view.admitted if a.resumed]
    assert preempted and preempted == resumed
    ended = [name for view in views for name in view.finished]
    assert len(ended) == 1, "the last request has no step behind it"


def admitted_blocks(view: StepView, name: str) -> tuple[int, ...]:
    return view.new_blocks[view.request_ids.index(name)].groups[0]


def test_views_cannot_change_what_they_show() -> None:
    items = [1, 2, 3]
    view = ReadOnly(items)
    assert (view[0], view[-1], view[1:], view[::-1]) == (1, 3, (2, 3), (3, 2, 1))
    assert view == [1, 2, 3] and hash(view) == hash((1, 2, 3))
    with pytest.raises(TypeError):
        view[0] = 9  # type: ignore[index]
    with pytest.raises(IndexError):
        view[3]
    items.append(4)
    assert len(view) == 3, "it grew after it was made"


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"match": lambda question: 5}, "match returned 5"),
        ({"match": lambda question: Now(-1)}, "at least 0 tokens"),
        ({"match": lambda question: Later(8)}, "match answered Later without the ability"),
        ({"step": lambda view: StepOrder(holds=(63,))}, "step named holds without"),
        ({"finished": lambda what: Keep(1.0)}, "finished kept blocks without"),
    ],
)
def test_a_breach_of_the_contract_stops_the_engine(
    make: Callable[..., ToyEngine], methods: dict[str, Any], said: str
) -> None:
    engine = make(Script(), connector="synchronous")
    replace(engine, **methods)
    engine.add(toy_request("r", PROMPT, 1))
    with pytest.raises(PluginError, match=said):
        engine.run()


def test_a_hold_on_a_free_block_is_a_breach(make: Callable[..., ToyEngine]) -> None:
    engine = make(Script())
    replace(engine, step=lambda view: StepOrder(holds=(63,)))
    engine.add(toy_request("r", PROMPT, 1))
    with pytest.raises(PluginError, match=r"holds blocks \[63\]"):
        engine.run()


def test_hits_from_outside_are_counted_apart(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    engine = make(filled)
    for name in ("a", "b"):
        engine.add(toy_request(name, PROMPT, 4))
        engine.run()
    stats = engine.scheduler.stats()
    assert (stats.cache.external_queried_tokens, stats.cache.external_hit_tokens) == (50, 48)
    assert (stats.cache.queried_tokens, stats.cache.hit_tokens) == (100, 48)
    assert [engine.told[name].last.cached_tokens for name in ("a", "b")] == [48, 48]
    assert stats.connector["scripted_blocks"] == 6.0
    assert stats.connector["scripted_polls"] == len(engine.plans)


def test_a_worker_that_breaks_down_costs_the_loads_only(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    filled.breaks = frozenset({"start_load"})
    for outcome in ("now", "later"):
        filled.outcomes = (outcome,)
        engine = make(filled)
        engine.add(toy_request("r", PROMPT, 4))
        engine.run()
        assert engine.told["r"].token_ids == toy_generate(toy_request("r", PROMPT, 4))
        assert engine.scheduler.stats().cache.external_hit_tokens == 0
        assert engine.scheduler.stats().used_blocks == 0


def test_tokens_that_were_sampled_from_bad_blocks_never_come_out(
    make: Callable[..., ToyEngine],
) -> None:
    """Also if their request is preempted while the step is in flight."""
    script, wrong, preempted = Script(), 0, 0
    wanted = [toy_request(f"r{n}", [*PROMPT[:40], n, n], 30) for n in range(6)]
    for faults in (None, Faults(spoils=lambda load, piece: piece.entry == 4)):
        for blocks in range(14, 34, 2):
            engine = make(
                script, blocks=blocks, depth=2, faults=faults, watermark=0.0, max_num_seqs=4
            )
            for request in wanted:
                engine.add(request)
            engine.run()
            for request in wanted:
                assert engine.told[request.request_id].token_ids == toy_generate(request)
            assert isinstance(engine.executor, PagedToyExecutor)
            wrong += engine.executor.wrong_tokens
            preempted += engine.scheduler.stats().preemptions
    assert wrong > 10, "nothing was computed with bad blocks"
    assert preempted > 10, "nobody was preempted"


def test_the_defaults_of_a_half_are_a_connector_that_has_nothing(
    make: Callable[..., ToyEngine],
) -> None:
    engine = make(Script())
    half = SchedulerHalf()
    replace(engine, **{name: getattr(half, name) for name in ("match", "step", "finished")})
    replace_worker_metadata(engine)
    engine.add(toy_request("r", PROMPT, 4))
    engine.run()
    assert engine.told["r"].token_ids == toy_generate(toy_request("r", PROMPT, 4))


def replace_worker_metadata(engine: ToyEngine) -> None:
    """The scripted worker gets what it can read."""
    empty = {"step": 0, "loads": [], "saves": [], "keeps": []}
    replace(engine, step=lambda view: StepOrder(empty))


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_a_failed_load_is_noticed_though_its_request_was_preempted_meanwhile(
    make: Callable[..., ToyEngine], filled: Script, policy: str
) -> None:
    spoils = Faults(spoils=lambda load, piece: piece.entry == 2)
    engine = make(filled, policy, blocks=10, depth=2, faults=spoils, watermark=0.0)
    first = toy_request("first", [80] * 15, 12)
    loaded = toy_request("loaded", PROMPT, 4)
    engine.add(first)
    engine.step()  # launches step 0
    engine.add(loaded)
    engine.step()  # launches step 1, which reads the bad block, and lands step 0
    engine.launch()  # step 2: the first one needs a block
    assert engine.scheduler.stats().preemptions == 1
    engine.run()
    assert isinstance(engine.executor, PagedToyExecutor)
    assert engine.executor.wrong_tokens == 1
    assert engine.told["first"].token_ids == toy_generate(first)
    wanted = toy_generate(loaded) if policy == "recompute" else []
    assert engine.told["loaded"].token_ids == wanted


def test_a_step_that_was_given_up_has_loaded_nothing(
    make: Callable[..., ToyEngine], filled: Script
) -> None:
    engine = make(filled)
    request = toy_request("r", PROMPT, 4)
    engine.add(request)
    plan = engine.scheduler.plan()
    assert plan.connector is not None and plan.connector.loads
    given_up = StepResult(plan.step_id, [], [], failed={plan.slots[0]: "interrupted"})
    engine.scheduler.update(plan, given_up)
    engine.scheduler.resync()
    engine.run()
    assert engine.told["r"].token_ids == toy_generate(request)


def test_a_pending_match_keeps_steps_going(make: Callable[..., ToyEngine], filled: Script) -> None:
    filled.outcomes, filled.delay = ("pending",), 9
    engine = make(filled)
    engine.add(toy_request("r", PROMPT, 1))
    plan = engine.scheduler.plan()
    assert not plan.rows and not plan.idle, "the engine would spin without a pause"


@pytest.mark.parametrize("caching", [True, False])
def test_blocks_that_fill_while_tokens_are_sampled_are_saved_too(
    make: Callable[..., ToyEngine], caching: bool
) -> None:
    script = Script()
    engine = make(script, enable_prefix_caching=caching)
    engine.add(toy_request("first", PROMPT[:10], 31))
    engine.run()
    assert len(script.store) == 5, "40 computed tokens are 5 blocks"
