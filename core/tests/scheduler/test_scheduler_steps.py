"""What the scheduler plans, step by step."""

from __future__ import annotations

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.step import StepResult
from pegboard.errors import PluginError
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
