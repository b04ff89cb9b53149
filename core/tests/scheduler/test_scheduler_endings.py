"""When and how requests end, and what is told of them."""

from __future__ import annotations

import pytest

from pegboard.api.params import SamplingParams
from pegboard.testing.toy import ToyExecutor, toy_generate, toy_token
from pegboard.testing.toy_engine import Told, ToyEngine, toy_request

PROMPT = list(range(20))
GREEDY = SamplingParams(temperature=0.0)
TEXT = toy_generate(toy_request("oracle", PROMPT, 30))
"""What the toy model says after PROMPT when nothing stops it."""


def run_one(max_tokens: int = 30, **fields: object) -> Told:
    toy = ToyEngine()
    toy.add(toy_request("a", PROMPT, max_tokens, **fields))  # type: ignore[arg-type]
    told = toy.run()["a"]
    assert toy.scheduler.stats().used_blocks == 0
    return told


def first_new(after: int) -> int:
    """Position of the first token at or behind `after` that did not occur before it."""
    return next(i for i in range(after, len(TEXT)) if TEXT[i] not in TEXT[:i])


def test_the_toy_text_is_varied_enough_for_these_tests() -> None:
    assert len(set(TEXT)) > 15


def test_max_tokens_ends_with_length() -> None:
    told = run_one(5)
    assert (told.token_ids, told.finish_reason, told.stop_reason) == (TEXT[:5], "length", None)


def test_a_model_end_id_stops_without_a_reason_and_is_kept_in_the_ids() -> None:
    end = first_new(4)
    told = run_one(end_ids=[TEXT[end]])
    assert (told.token_ids, told.finish_reason) == (TEXT[: end + 1], "stop")
    assert told.stop_reason is None


def test_a_stop_id_of_the_request_is_named_as_the_reason() -> None:
    end = first_new(4)
    params = SamplingParams(temperature=0.0, stop_token_ids=[TEXT[end]])
    told = run_one(params=params, end_ids=[TEXT[end]])
    assert (told.token_ids, told.finish_reason) == (TEXT[: end + 1], "stop")
    assert told.stop_reason == TEXT[end]


def test_an_end_id_as_the_last_allowed_token_is_a_stop() -> None:
    end = first_new(4)
    assert run_one(end + 1, end_ids=[TEXT[end]]).finish_reason == "stop"


@pytest.mark.parametrize("least", [0, 1, 2, 5])
def test_no_end_id_ends_a_request_before_min_tokens_o08(least: int) -> None:
    params = SamplingParams(temperature=0.0, min_tokens=least, max_tokens=30)
    request = toy_request("a", PROMPT, 30, params=params, end_ids=list(range(0, 97, 2)))
    told = run_one(params=params, end_ids=request.end_ids)
    assert told.finish_reason == "stop"
    assert len(told.token_ids) >= max(least, 1)
    assert told.token_ids == toy_generate(request)


def test_an_end_id_that_the_runner_let_through_too_early_does_not_end() -> None:
    class Unmasked(ToyExecutor):
        def _sample_row(self, slot, row, stop, result):  # type: ignore[no-untyped-def]
            row.end_ids = frozenset()
            super()._sample_row(slot, row, stop, result)

    toy = ToyEngine(executor=Unmasked())
    params = SamplingParams(temperature=0.0, min_tokens=3)
    toy.add(toy_request("a", PROMPT, 10, params=params, end_ids=list(range(97))))
    assert toy.run()["a"].token_ids == TEXT[:3]


@pytest.mark.parametrize("budget", [8, 19])  # the last step computes 4 tokens, and 1
def test_max_tokens_0_computes_the_prompt_and_samples_nothing_o10(budget: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0)
    toy = ToyEngine(max_num_batched_tokens=budget, block_size=32)
    toy.add(toy_request("a", PROMPT, 0, params=params))
    told = toy.run()["a"]
    assert (told.token_ids, told.finish_reason) == ([], "length")
    assert [position for position, _ in told.scores] == list(range(1, 20))
    assert not any(sample for plan in toy.plans for sample in plan.samples)


def test_a_context_that_is_full_after_the_prompt_gives_one_token_o12() -> None:
    told = run_one(1)
    assert (told.token_ids, told.finish_reason) == (TEXT[:1], "length")


def test_logprobs_come_with_their_tokens() -> None:
    toy = ToyEngine()
    toy.add(toy_request("a", PROMPT, 3, params=SamplingParams(temperature=0.0, logprobs=0)))
    while toy.scheduler.has_work():
        for output in toy.step():
            assert output.logprobs is not None
            assert [entry.ids[0] for entry in output.logprobs] == output.token_ids


def test_finish_ends_quietly_and_keeps_the_blocks_for_others() -> None:
    toy = ToyEngine()
    toy.add(toy_request("a", PROMPT, 30))
    for _ in range(3):
        toy.step()
    toy.scheduler.finish(["a", "unknown"], "stop")
    assert not toy.scheduler.has_work()
    assert toy.told["a"].finish_reason is None
    assert toy.scheduler.stats().used_blocks == 0
    toy.add(toy_request("b", PROMPT, 1))
    toy.run()
    assert toy.plans[-1].starts == [16]


def test_abort_tells_each_dropped_request_once() -> None:
    toy = ToyEngine(max_num_seqs=1)
    for name in ("running", "waiting"):
        toy.add(toy_request(name, PROMPT, 30))
    toy.step()
    outputs = toy.scheduler.abort(["waiting", "running", "running", "unknown"])
    assert [(o.request_id, o.finish_reason) for o in outputs] == [
        ("waiting", "abort"),
        ("running", "abort"),
    ]
    assert toy.scheduler.abort(["running"]) == []
    toy.scheduler.check()
    assert not toy.scheduler.has_work()


def test_the_late_result_of_an_aborted_request_is_ignored() -> None:
    toy = ToyEngine()
    kept = toy_request("kept", PROMPT, 6)
    toy.add(kept)
    toy.add(toy_request("gone", PROMPT[::-1], 6))
    toy.launch()
    toy.abort("gone")
    assert [output.request_id for output in toy.land()] == ["kept"]
    toy.scheduler.check()
    told = toy.run()
    assert told["gone"].token_ids == []
    assert told["kept"].token_ids == toy_generate(kept)


def test_an_id_used_again_while_its_old_step_is_in_flight_gets_only_its_own_tokens() -> None:
    toy = ToyEngine()
    toy.add(toy_request("same", PROMPT, 6))
    toy.launch()
    toy.abort("same")
    again = toy_request("same", PROMPT[::-1], 3)
    toy.add(again)
    assert toy.land() == []
    assert toy.run()["same"].token_ids == toy_generate(again)


def test_the_aborts_of_everything_at_any_moment_leave_nothing() -> None:
    for moment in range(12):
        toy = ToyEngine(blocks=9, block_size=8, max_num_batched_tokens=16, watermark=0.0)
        for name in "abcd":
            toy.add(toy_request(name, PROMPT, 20))
        for _ in range(moment):
            toy.step()
        toy.launch()
        toy.abort(*"abcd")
        toy.scheduler.check()
        while toy.scheduler.has_work():
            toy.step()
        assert toy.scheduler.stats().used_blocks == 0


# Prompt log-probabilities


def expected_scores(prompt: list[int]) -> list[tuple[int, float]]:
    """From a run with one chunk, no neighbour and no cache."""
    toy = ToyEngine(enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    toy.add(toy_request("alone", prompt, 1, params=params))
    scores = toy.run()["alone"].scores
    assert [position for position, _ in scores] == list(range(1, len(prompt)))
    return scores


def test_prompt_logprobs_are_complete_under_chunks_and_a_warm_cache() -> None:
    prompt = [*range(50)]
    toy = ToyEngine(max_num_batched_tokens=16)
    toy.add(toy_request("warm", prompt, 1))
    toy.run()
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    toy.add(toy_request("a", prompt, 2, params=params))
    told = toy.run()["a"]
    assert told.scores == expected_scores(prompt)
    assert told.last is not None
    assert told.last.cached_tokens == 0, "what must be scored must be computed"


def test_prompt_logprobs_are_told_once_although_preemption_computes_them_again() -> None:
    toy = ToyEngine(
        blocks=8,
        block_size=8,
        watermark=0.0,
        max_num_batched_tokens=16,
        enable_prefix_caching=False,
    )
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    prompts = {name: [*range(i, i + 20)] for i, name in enumerate("ab")}
    for name, prompt in prompts.items():
        toy.add(toy_request(name, prompt, 20, params=params))
    told = toy.run()
    assert toy.scheduler.stats().preemptions > 0
    for name, prompt in prompts.items():
        assert told[name].scores == expected_scores(prompt)


def test_the_oracle_is_not_constant() -> None:
    assert toy_token([1], GREEDY) != toy_token([2], GREEDY)
