"""What the prefix cache saves, and what it must not touch."""

from __future__ import annotations

import pytest

from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request


def engine(blocks: int = 64, **options: object) -> ToyEngine:
    return ToyEngine(blocks, **options)  # type: ignore[arg-type]


def prompt(tokens: int, first: int = 0) -> list[int]:
    return [(first + i) % 97 for i in range(tokens)]


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
