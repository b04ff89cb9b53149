"""What a step in flight still uses is nobody else's.

`ToyEngine` checks at each launch that no plan hands out a slot or a block that a step in flight
writes; the property tests run it at several depths. Here are the cases by name.
"""

from __future__ import annotations

import pytest

from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_kinds import TOY_KINDS

PROMPT = list(range(40, 55))


def engine(blocks: int, kinds: str = "full", **options: object) -> ToyEngine:
    executor = ToyExecutor(specs=TOY_KINDS[kinds])
    return ToyEngine(blocks, depth=2, block_size=8, executor=executor, watermark=0.0, **options)


def given(toy: ToyEngine) -> set[int]:
    """Blocks that the newest plan hands out."""
    return {block for row in toy.plans[-1].new_blocks for ids in row for block in ids}


def test_a_block_stays_back_while_a_step_of_an_ended_request_writes_it() -> None:
    toy = engine(8)
    ends = toy_request("ends", PROMPT, 20, end_ids=[toy_generate(toy_request("x", PROMPT))[1]])
    toy.add(ends)
    toy.launch()  # the prompt, 15 tokens in 2 blocks
    toy.launch()  # the 16th token, the last place of the second block
    toy.land()
    toy.launch()  # the 17th token, in a third block: the end is sampled in the step before
    late = given(toy)
    assert len(late) == 1
    toy.land()
    assert toy.told["ends"].finish_reason == "stop"
    toy.scheduler.check()
    toy.add(toy_request("next", list(range(60, 90)), 2))
    toy.launch()
    assert len(given(toy)) == 4, "the next request is not kept waiting"
    assert not given(toy) & late
    assert toy.scheduler.stats().used_blocks == 5, "the block that is being written is no one's"
    toy.land()
    toy.scheduler.check()
    assert toy.scheduler.stats().used_blocks == 4
    toy.run()
    assert toy.told["ends"].token_ids == toy_generate(ends)
    assert toy.scheduler.stats().used_blocks == 0


def test_an_aborted_request_waits_for_its_step_before_its_last_block_is_given_away() -> None:
    toy = engine(4)
    toy.add(toy_request("gone", list(range(20)), 4))
    toy.launch()
    toy.abort("gone")
    toy.add(toy_request("next", list(range(30, 50)), 4))
    assert not toy.launch(), "all blocks are written by the step in flight"
    toy.land()
    assert toy.launch()
    assert toy.run()["next"].token_ids == toy_generate(toy_request("next", list(range(30, 50)), 4))


def test_a_lone_request_waits_for_blocks_that_are_being_written_instead_of_starting_over() -> None:
    toy = engine(5)
    first = toy_request("first", list(range(20)), 12)
    toy.add(first)
    toy.add(toy_request("second", [50], 20))
    while not (toy.plans and toy.plans[-1].starts[0] == 23):
        toy.step()
    toy.abort("second")
    assert not toy.launch(), "the fourth block is still being written"
    assert toy.run()["first"].token_ids == toy_generate(first)
    assert toy.scheduler.stats().preemptions == 0


@pytest.mark.parametrize("kinds", sorted(TOY_KINDS))
def test_every_kind_of_group_keeps_what_is_being_written(kinds: str) -> None:
    toy = engine(400, kinds, max_num_batched_tokens=24)
    for number in range(12):
        request = toy_request(
            f"{number}", [number, *range(20 + number)], 30, encoder_tokens=9 * ("cross" in kinds)
        )
        toy.add(request)
        for _ in range(3):
            toy.step()
        assert toy.launch()
        held = toy.scheduler.stats().used_blocks
        toy.abort(f"{number}")
        kept = toy.scheduler.stats().used_blocks
        assert 0 < kept <= held, "what is being written is not free yet"
        while toy.scheduler.has_work():
            toy.land()
        assert toy.scheduler.stats().used_blocks == 0


def test_a_resync_comes_although_steps_overlap_all_the_time() -> None:
    toy = engine(40)
    requests = [toy_request(name, [ord(name)] * 9, 30) for name in "ab"]
    for request in requests:
        toy.add(request)
    for _ in range(6):
        toy.step()
    toy.scheduler.resync()
    told = toy.run()
    assert toy.executor.counts.resyncs == 1
    for request in requests:
        assert told[request.request_id].token_ids == toy_generate(request)
