"""n > 1: children share their parent's prompt, whatever happens to parent, siblings and blocks."""

from __future__ import annotations

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.errors import RequestError
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request

RANDOM = SamplingParams(temperature=1.0, n=4)


def family(
    n: int = 4, tokens: int = 40, max_tokens: int = 6, params: SamplingParams = RANDOM
) -> list[EngineRequest]:
    prompt = [(7 * i) % 97 for i in range(tokens)]
    return [
        toy_request(
            f"c{child}",
            prompt,
            max_tokens,
            params=params,
            seed=3,
            child=child,
            parent="c0" if child else None,
        )
        for child in range(n)
    ]


def start(requests: list[EngineRequest], blocks: int = 64, **options: object) -> ToyEngine:
    toy = ToyEngine(blocks, **options)  # type: ignore[arg-type]
    for request in requests:
        toy.add(request)
    return toy


def assert_texts(toy: ToyEngine, requests: list[EngineRequest]) -> None:
    for request in requests:
        assert toy.told[request.request_id].token_ids == toy_generate(request), request.request_id


def prompt_tokens(toy: ToyEngine, tokens: int) -> int:
    """Tokens computed below position `tokens`, over all rows."""
    return sum(
        max(min(start + count, tokens) - start, 0)
        for plan in toy.plans
        for start, count in zip(plan.starts, plan.counts, strict=True)
    )


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("tokens", [1, 2, 16, 17, 33, 40])
def test_the_prompt_is_computed_once(caching: bool, depth: int, tokens: int) -> None:
    requests = family(tokens=tokens)
    toy = start(requests, enable_prefix_caching=caching, depth=depth)
    toy.run()
    assert_texts(toy, requests)
    assert len({tuple(told.token_ids) for told in toy.told.values()}) == 4, "children are equal"
    assert prompt_tokens(toy, tokens) == tokens + 3, "each child computes the last token again"
    begun = (tokens - 1) % 16
    assert toy.executor.counts.copies == (3 if begun else 0)
    assert {copy.tokens for plan in toy.plans for copy in plan.copies} <= {begun}


def test_children_wait_for_every_chunk_of_the_prompt() -> None:
    requests = family(tokens=40)
    toy = start(requests, max_num_batched_tokens=16)
    toy.run()
    assert [plan.rows for plan in toy.plans[:4]] == [1, 1, 1, 4]
    assert_texts(toy, requests)


def test_waiting_children_hold_up_nobody() -> None:
    requests = family(tokens=40)
    toy = start(requests, max_num_batched_tokens=30)
    other = toy_request("other", [1, 2, 3], 2)
    toy.add(other)
    toy.run()
    assert [row.prompt_ids for row in toy.plans[1].new_rows] == [[1, 2, 3]]
    assert_texts(toy, [*requests, other])


@pytest.mark.parametrize("caching", [True, False])
def test_the_parent_may_finish_with_its_first_token(caching: bool) -> None:
    requests = family(max_tokens=6)
    requests[0].max_tokens = 1
    toy = start(requests, enable_prefix_caching=caching, max_num_seqs=1)
    toy.run()
    assert_texts(toy, requests)
    assert prompt_tokens(toy, 40) == 43


def test_the_parent_may_be_aborted_while_children_wait_with_references() -> None:
    requests = family()
    toy = start(requests, max_num_seqs=1, enable_prefix_caching=False)
    toy.step()
    toy.abort("c0")
    toy.run()
    assert_texts(toy, requests[1:])
    assert prompt_tokens(toy, 40) == 43


def test_if_the_parent_is_aborted_before_its_prompt_is_done_a_child_takes_the_lead() -> None:
    requests = family()
    toy = start(requests, max_num_batched_tokens=16, enable_prefix_caching=False)
    toy.step()
    toy.abort("c0")
    toy.scheduler.check()
    toy.run()
    assert_texts(toy, requests[1:])
    assert prompt_tokens(toy, 40) == 16 + 40 + 2, "one child computes the prompt for all"


def test_if_leader_after_leader_goes_the_last_child_serves_itself() -> None:
    requests = family()
    toy = start(requests, max_num_batched_tokens=16, enable_prefix_caching=False)
    for request in requests[:-1]:
        toy.step()
        toy.abort(request.request_id)
        toy.scheduler.check()
    toy.run()
    assert_texts(toy, requests[-1:])


def test_a_parent_that_fails_leaves_its_children_to_fail_or_live_by_themselves() -> None:
    requests = family(n=3)
    toy = start(requests, executor=ToyExecutor(poison=requests[0].prompt_ids[-1]))
    told = toy.run()
    assert [told[name].finish_reason for name in ("c0", "c1", "c2")] == ["error"] * 3
    assert toy.scheduler.stats().used_blocks == 0


def test_waiting_children_can_be_aborted_with_and_without_references() -> None:
    requests = family()
    toy = start(requests, max_num_seqs=2, max_num_batched_tokens=16)
    toy.abort("c3")
    for _ in range(3):
        toy.step()
    toy.scheduler.check()
    toy.abort("c2")
    toy.scheduler.check()
    toy.run()
    assert_texts(toy, requests[:2])


@pytest.mark.parametrize("caching", [True, False])
def test_under_pressure_references_of_waiting_children_go_before_running_requests(
    caching: bool,
) -> None:
    # Two run; the others wait with references on a prompt that its parent has given up.
    requests = family(n=5, tokens=30, max_tokens=20)
    requests[0].max_tokens = 1
    toy = start(
        requests,
        blocks=9,
        block_size=8,
        max_num_seqs=2,
        watermark=0.0,
        enable_prefix_caching=caching,
    )
    toy.run()
    assert_texts(toy, requests)
    fresh = [row for plan in toy.plans for row in plan.new_rows if not row.output_ids]
    copied = sum(map(len, (plan.copies for plan in toy.plans)))
    assert len(fresh) == 5
    assert copied < 4, "no reference was given up"


def test_references_alone_never_block_an_empty_engine() -> None:
    """A request before the children in the queue needs the blocks that only they hold."""
    requests = family(n=3, tokens=33, max_tokens=1)
    toy = ToyEngine(blocks=5, max_num_seqs=1, watermark=0.0, enable_prefix_caching=False)
    toy.add(requests[0])
    big = toy_request("big", list(range(60)), 4)
    toy.add(big)
    for request in requests[1:]:
        toy.add(request)
    toy.run()
    assert_texts(toy, [*requests, big])
    assert toy.executor.counts.copies == 0, "33 tokens end a block: nothing to copy"
    assert prompt_tokens(toy, 33) > 33 + 33 + 2, "the children did not compute the prompt again"


def test_a_preempted_parent_still_leads_its_children() -> None:
    # `first` grows until the parent, in the middle of its prompt, must go.
    first = toy_request("first", list(range(50, 58)), 40)
    requests = family(n=3, tokens=39, max_tokens=3)
    toy = ToyEngine(
        blocks=8,
        block_size=8,
        max_num_batched_tokens=4,
        watermark=0.0,
        max_num_seqs=4,
        enable_prefix_caching=False,
    )
    toy.add(first)
    for _ in range(2):
        toy.step()
    for request in requests:
        toy.add(request)
    toy.run()
    began = [row.child for plan in toy.plans for row in plan.new_rows if len(row.prompt_ids) == 39]
    assert began[:2] == [0, 0], "the parent was not preempted before its prompt was done"
    assert_texts(toy, [first, *requests])
    assert toy.executor.counts.copies == 2


def test_a_child_that_comes_late_still_shares() -> None:
    requests = family(max_tokens=20)
    toy = start(requests[:1], enable_prefix_caching=False)
    toy.step()
    toy.add(requests[1])
    toy.run()
    assert_texts(toy, requests[:2])
    assert prompt_tokens(toy, 40) == 41


def test_a_child_of_a_finished_parent_serves_itself() -> None:
    requests = family(max_tokens=1)
    toy = start(requests[:1])
    toy.run()
    toy.add(requests[1])
    toy.run()
    assert_texts(toy, requests[:2])


def test_a_child_of_a_waiting_child_waits_for_the_same_leader() -> None:
    requests = family(n=3)
    requests[2].parent = "c1"
    toy = start(requests, enable_prefix_caching=False)
    toy.scheduler.check()
    toy.run()
    assert [plan.rows for plan in toy.plans[:2]] == [1, 3]
    assert_texts(toy, requests)
    assert prompt_tokens(toy, 40) == 42


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt_ids", [1, 2]), ("cache_salt", "x"), ("adapter", "x"), ("media", [(0, 1, b"x")])],
)
def test_a_child_that_differs_from_its_parent_is_refused(field: str, value: object) -> None:
    parent, child = family(n=2)
    toy = start([parent])
    setattr(child, field, value)
    with pytest.raises(RequestError, match=f"must have its parent's {field}"):
        toy.scheduler.add(child)
    toy.scheduler.check()


def test_prompt_logprobs_are_told_by_the_leader_alone() -> None:
    params = SamplingParams(temperature=1.0, n=3, prompt_logprobs=0)
    requests = family(n=3, params=params)
    toy = start(requests, max_num_batched_tokens=16)
    told = toy.run()
    assert [position for position, _ in told["c0"].scores] == list(range(1, 40))
    assert told["c1"].scores == told["c2"].scores == []
    assert_texts(toy, requests)


def test_a_child_that_computes_the_prompt_again_does_not_tell_its_logprobs_again() -> None:
    params = SamplingParams(temperature=1.0, n=3, prompt_logprobs=0)
    requests = family(n=3, tokens=33, max_tokens=1, params=params)
    toy = ToyEngine(blocks=5, max_num_seqs=1, watermark=0.0, enable_prefix_caching=False)
    toy.add(requests[0])
    toy.add(toy_request("big", list(range(60)), 4))
    for request in requests[1:]:
        toy.add(request)
    told = toy.run()
    assert prompt_tokens(toy, 33) > 33 + 33 + 2, "the children did not compute the prompt again"
    assert [position for position, _ in told["c0"].scores] == list(range(1, 33))
    assert told["c1"].scores == told["c2"].scores == []


def test_every_group_is_forked() -> None:
    requests = family(n=3)
    toy = start(requests, executor=ToyExecutor(groups=2))
    toy.run()
    assert_texts(toy, requests)
    assert {copy.group for plan in toy.plans for copy in plan.copies} == {0, 1}
