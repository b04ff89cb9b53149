"""Requests that cannot be served are refused, and say what could be."""

from __future__ import annotations

import pytest

from pegboard.errors import RequestError, ResourceError
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request


def engine(blocks: int = 64, **options: object) -> ToyEngine:
    return ToyEngine(blocks, **options)  # type: ignore[arg-type]


def prompt(tokens: int, first: int = 0) -> list[int]:
    return [(first + i) % 97 for i in range(tokens)]


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
    with pytest.raises(ResourceError, match=r"33 tokens.*max_num_batched_tokens=32"):
        toy.add(toy_request("long", prompt(33)))
    toy.add(toy_request("a", prompt(20), max_tokens=2))
    toy.add(toy_request("b", prompt(20, 50), max_tokens=2))
    toy.run()
    assert [plan.counts for plan in toy.plans] == [[20], [1, 20], [1]]


def test_without_chunks_a_preempted_request_longer_than_a_step_comes_back() -> None:
    toy = engine(
        blocks=10,
        block_size=8,
        watermark=0.0,
        enable_chunked_prefill=False,
        max_num_batched_tokens=20,
        enable_prefix_caching=False,
    )
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
