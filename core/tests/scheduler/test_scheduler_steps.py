"""What the scheduler plans, step by step."""

from __future__ import annotations

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.step import StepResult
from pegboard.errors import PluginError, RequestError, ResourceError
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request


def engine(blocks: int = 64, **options: object) -> ToyEngine:
    return ToyEngine(blocks, **options)  # type: ignore[arg-type]


def prompt(tokens: int, first: int = 0) -> list[int]:
    return [(first + i) % 97 for i in range(tokens)]


def test_two_prompts_share_a_step() -> None:
    toy = engine()
    toy.add(toy_request("a", prompt(10)))
    toy.add(toy_request("b", prompt(20, 50)))
    toy.step()
    (plan,) = toy.plans
    assert (plan.counts, plan.starts, plan.samples) == ([10, 20], [0, 0], [True, True])
    assert [row.prompt_ids for row in plan.new_rows] == [prompt(10), prompt(20, 50)]


def test_a_long_prompt_runs_in_chunks_beside_a_decode() -> None:
    toy = engine(max_num_batched_tokens=16, enable_prefix_caching=False)
    toy.add(toy_request("short", prompt(4), max_tokens=9))
    toy.step()
    toy.add(toy_request("long", prompt(40, 30), max_tokens=1))
    for _ in range(3):
        toy.step()
    assert [plan.counts for plan in toy.plans[1:]] == [[1, 15], [1, 15], [1, 10]]
    assert [plan.samples for plan in toy.plans[1:]] == [[True, False], [True, False], [True, True]]
    assert toy.told["long"].token_ids == toy_generate(toy_request("long", prompt(40, 30), 1))


def test_no_more_requests_run_than_allowed() -> None:
    toy = engine(max_num_seqs=2)
    for name in "abc":
        toy.add(toy_request(name, prompt(5), max_tokens=2))
    toy.step()
    assert toy.plans[0].rows == 2
    toy.run()
    assert toy.told["c"].finish_reason == "length"
    assert max(plan.rows for plan in toy.plans) == 2


def test_requests_are_admitted_in_the_order_of_arrival() -> None:
    toy = engine(max_num_seqs=1)
    order = []
    for name in ("z", "a", "m"):
        toy.add(toy_request(name, prompt(5), max_tokens=1))
    while toy.scheduler.has_work():
        order += [output.request_id for output in toy.step()]
    assert order == ["z", "a", "m"]


def test_a_request_that_does_not_fit_is_not_overtaken() -> None:
    toy = engine(blocks=7, watermark=0.0)
    toy.add(toy_request("first", prompt(60), max_tokens=30))
    toy.step()
    toy.add(toy_request("big", prompt(50, 30), max_tokens=1))
    toy.add(toy_request("small", prompt(5, 70), max_tokens=1))
    toy.step()
    assert toy.plans[-1].rows == 1, "small fits but must not pass big"
    toy.run()
    assert toy.told["big"].finish_reason == toy.told["small"].finish_reason == "length"


def test_admission_leaves_the_watermark() -> None:
    toy = engine(blocks=11, watermark=0.3)
    toy.add(toy_request("a", prompt(16 * 4), max_tokens=2))
    toy.add(toy_request("b", prompt(16 * 4, 40), max_tokens=2))
    toy.step()
    assert toy.plans[0].rows == 1, "2 of 10 blocks would be left, 3 must be"
    lone = engine(blocks=11, watermark=0.9)
    lone.add(toy_request("a", prompt(16 * 10), max_tokens=1))
    lone.step()
    assert lone.plans[0].rows == 1, "a request alone may use every block"


def test_admission_looks_at_the_whole_prompt_not_only_at_its_first_chunk() -> None:
    toy = engine(blocks=11, watermark=0.0, max_num_batched_tokens=16, enable_prefix_caching=False)
    toy.add(toy_request("a", prompt(16 * 2), max_tokens=40))
    toy.step()
    toy.step()
    toy.add(toy_request("b", prompt(16 * 9, 40), max_tokens=1))
    toy.step()
    assert toy.plans[-1].rows == 1, "8 blocks are left, the prompt needs 9"
    toy.run()
    assert toy.scheduler.stats().preemptions == 0


def test_blocks_arrive_as_differences() -> None:
    toy = engine(block_size=8)
    toy.add(toy_request("a", prompt(8), max_tokens=10))
    toy.run()
    new = [plan.new_blocks[0][0] for plan in toy.plans]
    assert [len(blocks) for blocks in new] == [1, 1, *[0] * 7, 1]
    assert [bool(plan.new_rows) for plan in toy.plans] == [True, *[False] * 9]


def test_the_last_request_is_preempted_and_keeps_its_place() -> None:
    toy = engine(blocks=7, block_size=8, watermark=0.0, enable_prefix_caching=False)
    requests = [
        toy_request("a", prompt(17), max_tokens=20),
        toy_request("b", prompt(17, 40), max_tokens=20),
    ]
    for request in requests:
        toy.add(request)
    while not toy.scheduler.stats().preemptions:
        toy.step()
    assert toy.plans[-1].new_rows == [], "a step that preempts must not admit"
    late = toy_request("late", prompt(3, 80), max_tokens=1)
    toy.add(late)
    assert len(toy.plans[-1].freed_slots) == 1
    order = []
    while toy.scheduler.has_work():
        order += [output.request_id for output in toy.step() if output.finish_reason]
    assert order.index("b") > order.index("a")
    resumed = next(row for plan in toy.plans[::-1] for row in plan.new_rows if row.output_ids)
    assert resumed.prompt_ids == prompt(17, 40), "b, which was admitted last, was preempted"
    position = {
        row.prompt_ids[0]: number for number, plan in enumerate(toy.plans) for row in plan.new_rows
    }
    assert position[40] <= position[80], "the late request passed the preempted one"
    for request in [*requests, late]:
        assert toy.told[request.request_id].token_ids == toy_generate(request)


def test_a_slot_freed_in_a_plan_may_be_reused_in_it() -> None:
    toy = engine(max_num_seqs=1)
    for name in "ab":
        toy.add(toy_request(name, prompt(5), max_tokens=1))
    toy.run()
    assert toy.plans[1].freed_slots == [toy.plans[1].new_rows[0].slot]


def test_a_slot_is_not_reused_while_a_step_that_names_it_is_in_flight() -> None:
    toy = engine(max_num_seqs=1, depth=2)
    toy.add(toy_request("a", prompt(5), max_tokens=9))
    toy.add(toy_request("b", prompt(6), max_tokens=2))
    assert toy.launch()
    toy.abort("a")
    assert not toy.launch(), "the only slot is still named by the step in flight"
    toy.land()
    assert toy.launch()
    assert toy.plans[-1].freed_slots == [0] == toy.plans[-1].slots


# Requests that cannot be served


def test_a_live_id_is_refused_and_a_finished_one_is_not_o13() -> None:
    toy = engine()
    toy.add(toy_request("same", prompt(5), max_tokens=2))
    toy.step()
    with pytest.raises(RequestError, match="'same'") as caught:
        toy.add(toy_request("same", prompt(9)))
    assert caught.value.field == "request_id"
    toy.scheduler.check()
    first = toy.run()["same"].token_ids
    assert first == toy_generate(toy_request("same", prompt(5), 2))
    toy.add(toy_request("same", prompt(7), max_tokens=2))
    assert toy.run()["same"].token_ids == toy_generate(toy_request("same", prompt(7), 2))
    stats = toy.scheduler.stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)


def test_a_request_that_can_never_fit_is_refused_with_what_would() -> None:
    toy = engine(blocks=5)
    with pytest.raises(ResourceError, match="holds 64; lower max_tokens to at most 15"):
        toy.add(toy_request("a", prompt(50), max_tokens=16))
    with pytest.raises(ResourceError, match="shorten the prompt"):
        toy.add(toy_request("a", prompt(66), max_tokens=1))
    assert not toy.scheduler.has_work()
    request = toy_request("a", prompt(50), max_tokens=15)
    toy.add(request)
    assert toy.run()["a"].token_ids == toy_generate(request)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(RequestError, match="at least one token"):
        engine().add(toy_request("a", []))


def test_without_chunks_a_prompt_runs_whole_or_is_refused() -> None:
    toy = engine(enable_chunked_prefill=False, max_num_batched_tokens=32)
    with pytest.raises(ResourceError, match="33 tokens.*max_num_batched_tokens=32"):
        toy.add(toy_request("long", prompt(33)))
    toy.add(toy_request("a", prompt(20), max_tokens=2))
    toy.add(toy_request("b", prompt(20, 50), max_tokens=2))
    toy.run()
    assert [plan.counts for plan in toy.plans] == [[20], [1, 20], [1]]


def test_without_chunks_a_preempted_request_longer_than_a_step_comes_back() -> None:
    toy = engine(
        blocks=10, block_size=8, watermark=0.0, enable_chunked_prefill=False,
        max_num_batched_tokens=20, enable_prefix_caching=False,
    )  # fmt: skip
    requests = [toy_request(name, prompt(16, 20 * i), 40) for i, name in enumerate("abc")]
    for request in requests:
        toy.add(request)
    toy.run()
    longest = max(
        len(row.prompt_ids) + len(row.output_ids) for p in toy.plans for row in p.new_rows
    )
    assert longest > 20, "no request outgrew the budget before it was preempted"
    for request in requests:
        assert toy.told[request.request_id].token_ids == toy_generate(request)


# Cache


def test_a_second_prompt_starts_where_the_first_one_is_cached() -> None:
    toy = engine()
    toy.add(toy_request("a", prompt(50), max_tokens=1))
    toy.run()
    toy.add(toy_request("b", prompt(50), max_tokens=1))
    toy.run()
    assert (toy.plans[1].starts, toy.plans[1].counts) == ([48], [2])
    assert toy.told["b"].token_ids == toy.told["a"].token_ids
    assert toy.told["b"].last is not None
    assert toy.told["b"].last.cached_tokens == 48
    cache = toy.scheduler.stats().cache
    assert (cache.queried_tokens, cache.hit_tokens) == (100, 48)


@pytest.mark.parametrize(("tokens", "cached"), [(31, 16), (32, 16), (33, 32)])
def test_a_hit_on_the_whole_prompt_leaves_its_last_token_to_compute_o17(
    tokens: int, cached: int
) -> None:
    toy = engine()
    toy.add(toy_request("a", prompt(33), max_tokens=1))
    toy.run()
    request = toy_request("b", prompt(tokens), max_tokens=3)
    toy.add(request)
    told = toy.run()["b"]
    assert told.last is not None
    assert told.last.cached_tokens == cached
    assert told.token_ids == toy_generate(request)


def test_blocks_are_shared_only_after_the_update_of_the_step_that_filled_them() -> None:
    toy = engine(depth=2)
    toy.add(toy_request("a", prompt(40), max_tokens=3))
    toy.launch()
    toy.add(toy_request("b", prompt(40), max_tokens=1))
    toy.launch()
    assert toy.plans[1].starts == [40, 0], "b read blocks of a step in flight"
    toy.land()
    toy.add(toy_request("c", prompt(40), max_tokens=1))
    toy.launch()
    assert toy.plans[2].starts[-1] == 32


def test_salted_requests_do_not_share() -> None:
    toy = engine()
    for salt in ("x", "y", "x", None):
        toy.add(toy_request(f"{salt}{len(toy.plans)}", prompt(40), max_tokens=1, cache_salt=salt))
        toy.run()
    assert [plan.starts for plan in toy.plans] == [[0], [0], [32], [0]]


def test_reset_waits_for_nothing_and_forgets_everything() -> None:
    toy = engine()
    toy.add(toy_request("a", prompt(40), max_tokens=2))
    toy.step()
    assert not toy.scheduler.reset_prefix_cache()
    toy.run()
    assert toy.scheduler.reset_prefix_cache()
    toy.add(toy_request("b", prompt(40), max_tokens=1))
    toy.run()
    assert toy.plans[-1].starts == [0]


# The runner's side


def test_a_failed_row_ends_alone() -> None:
    toy = engine(executor=ToyExecutor(poison=96))
    good = toy_request("good", prompt(20), max_tokens=4)
    toy.add(good)
    toy.add(toy_request("bad", [96, *prompt(20)], max_tokens=4))
    told = toy.run()
    assert told["bad"].finish_reason == "error"
    assert told["bad"].last is not None
    assert told["bad"].last.error == "token 96 is poison"
    assert told["good"].token_ids == toy_generate(good)
    assert toy.scheduler.stats().used_blocks == 0


def test_a_row_without_its_token_ends_alone() -> None:
    toy = engine()
    for name in "ab":
        toy.add(toy_request(name, prompt(5), max_tokens=2))
    plan = toy.scheduler.plan()
    result = StepResult(plan.step_id, plan.slots[1:], [[7]])
    first, second = toy.scheduler.update(plan, result)
    assert (first.finish_reason, second.finish_reason) == ("error", None)
    toy.scheduler.check()


def test_a_result_of_another_step_is_refused() -> None:
    toy = engine()
    toy.add(toy_request("a", prompt(5)))
    plan = toy.scheduler.plan()
    with pytest.raises(PluginError, match="returned step 9 for step 0"):
        toy.scheduler.update(plan, StepResult(9, plan.slots, [[1]]))


def test_a_resync_restates_every_running_request() -> None:
    toy = engine(max_num_batched_tokens=16, enable_prefix_caching=False)
    requests = [toy_request(name, prompt(13, 20 * i), 9) for i, name in enumerate("abc")]
    for request in requests:
        toy.add(request)
    for _ in range(3):
        toy.step()
    toy.executor._rows.clear()  # what a restarted runner knows
    toy.scheduler.resync()
    toy.step()
    plan = toy.plans[-1]
    assert plan.resync
    assert len(plan.new_rows) == toy.scheduler.stats().running
    toy.run()
    assert toy.executor.counts.resyncs == 1
    for request in requests:
        assert toy.told[request.request_id].token_ids == toy_generate(request)


def test_check_notices_a_slot_that_is_lost() -> None:
    toy = engine()
    toy.add(toy_request("a", prompt(5)))
    toy.step()
    toy.scheduler._books.slots.take()
    with pytest.raises(AssertionError, match="slots are lost"):
        toy.scheduler.check()


def test_sampling_parameters_reach_the_runner() -> None:
    toy = engine()
    params = SamplingParams(temperature=0.5, stop_token_ids=[3])
    toy.add(toy_request("a", prompt(5), 2, params=params, seed=9, child=2, end_ids=[8]))
    toy.step()
    (row,) = toy.plans[0].new_rows
    assert (row.params, row.seed, row.child, row.end_ids) == (params, 9, 2, [3, 8])
