"""Plans say with how many blocks all their rows begin. The toy executor checks on every step that
they do, the audit that no more of them do."""

from __future__ import annotations

import pytest

from pegboard.testing.toy import ToyExecutor
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_kinds import TOY_KINDS

STEM = [token % 97 for token in range(70)]


def warm(kinds: str = "full") -> ToyEngine:
    """An engine that has `STEM` in its cache."""
    toy = ToyEngine(200, executor=ToyExecutor(specs=TOY_KINDS[kinds]))
    toy.add(toy_request("stem", STEM, max_tokens=1))
    toy.run()
    return toy


def begin(toy: ToyEngine, name: str, shared: int, max_tokens: int = 30) -> None:
    """One more running request, which has `shared` tokens of the stem."""
    own = [90 - len(toy.plans) % 7] * 5 + [len(name)]
    toy.add(toy_request(name, STEM[:shared] + own, max_tokens=max_tokens))
    toy.step()
    toy.scheduler.check()


def common(toy: ToyEngine) -> list[int]:
    toy.step()
    toy.scheduler.check()
    return toy.plans[-1].common_prefix


def test_rows_have_the_blocks_of_their_common_hit_in_common() -> None:
    toy = warm()
    begin(toy, "a", 70)
    assert common(toy) == [], "one row has nothing in common with others"
    begin(toy, "b", 70)
    assert common(toy) == [4]
    begin(toy, "c", 40)
    assert common(toy) == [2], "whoever shares less ends what all share"
    begin(toy, "d", 70)
    assert common(toy) == [2]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_more_is_in_common_when_the_one_who_shared_less_leaves(gone: str) -> None:
    toy = warm()
    for name, shared in (("a", 70), ("b", 20), ("c", 70)):
        begin(toy, name, shared)
    assert common(toy) == [1]
    toy.scheduler.abort([gone])
    assert common(toy) == ([4] if gone == "b" else [1])


def test_a_stranger_ends_all_and_its_end_brings_all_back() -> None:
    toy = warm()
    begin(toy, "a", 70)
    begin(toy, "stranger", 0, max_tokens=3)
    begin(toy, "b", 70)
    assert toy.plans[-1].common_prefix == []
    while "stranger" in toy.scheduler._books.requests:
        toy.step()
    assert common(toy) == [4]


def test_groups_that_give_up_blocks_have_none_in_common() -> None:
    toy = warm("sliding and full")
    begin(toy, "a", 70)
    begin(toy, "b", 70)
    specs = [group.spec.kind for group in toy.scheduler._kv.groups]
    lengths = common(toy)
    assert [bool(length) for length in lengths] == [kind == "full" for kind in specs]


def test_children_share_the_prompt_of_their_parent() -> None:
    toy = ToyEngine(200, enable_prefix_caching=False)
    toy.add(toy_request("p", STEM, max_tokens=9))
    for child in (1, 2):
        toy.add(toy_request(f"c{child}", STEM, max_tokens=9, child=child, parent="p"))
    toy.step()
    toy.step()
    assert common(toy) == [4]
