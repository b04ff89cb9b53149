"""The block pool against a naive model, and its rules one by one."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.kv import BlockPool


def key(name: str, group: int = 0) -> tuple[int, bytes]:
    return group, name.encode()


class NaivePool:
    """What the pool must do, the slow way: one list, one count and some keys per block."""

    def __init__(self, blocks: int) -> None:
        self.order = list(range(1, blocks))
        self.refs = [0] * blocks
        self.filed: list[tuple[int, tuple[int, bytes]]] = []  # (block, key), oldest first
        self.evicted = 0

    def take(self, count: int) -> list[int]:
        taken, self.order = self.order[:count], self.order[count:]
        for block in taken:
            self.refs[block] = 1
            self.evicted += self.forget(block)
        return taken

    def forget(self, block: int) -> bool:
        before = len(self.filed)
        self.filed = [(other, name) for other, name in self.filed if other != block]
        return len(self.filed) < before

    def keys(self, block: int) -> tuple[tuple[int, bytes], ...]:
        return tuple(name for other, name in self.filed if other == block)

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] += 1
            self.order = [other for other in self.order if other != block]

    def free(self, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self.order.insert(len(self.order) if self.keys(block) else 0, block)

    def file(self, block: int, name: tuple[int, bytes]) -> None:
        self.filed.append((block, name))

    def find(self, name: tuple[int, bytes]) -> int | None:
        return next((block for block, filed in self.filed if filed == name), None)

    def evict(self, ids: list[int]) -> int:
        count = 0
        for block in ids:
            if self.forget(block):
                count += 1
                if block in self.order:
                    self.order.remove(block)
                    self.order.insert(0, block)
        return count


def drive(seed: int, operations: int, blocks: int) -> Counter[str]:
    """The same random calls to both pools; every answer and the whole order must agree."""
    rng, done = random.Random(seed), Counter[str]()
    pool, naive = BlockPool(blocks), NaivePool(blocks)
    held: list[list[int]] = []
    for _ in range(operations):
        action = rng.choice(
            ["take", "take", "free", "free", "touch", "file", "file", "evict", "hit"]
        )
        if action == "take" and naive.order:
            count = rng.randint(1, min(4, len(naive.order)))
            taken = [block.id for block in pool.take(count)]
            assert taken == naive.take(count)
            held.append(taken)
        elif action == "free" and held:
            ids = held.pop(rng.randrange(len(held)))
            pool.free([pool.blocks[index] for index in ids])
            naive.free(ids)
        elif action == "touch" and held:
            ids = list(rng.choice(held))
            pool.touch(pool.blocks[index] for index in ids)
            naive.touch(ids)
            held.append(ids)
        elif action == "file" and held:
            block = rng.choice(rng.choice(held))
            name = key(str(rng.randrange(6)), rng.randrange(2))
            if name in naive.keys(block):
                continue
            pool.file(pool.blocks[block], name)
            naive.file(block, name)
        elif action == "hit":
            name = key(str(rng.randrange(6)), rng.randrange(2))
            found, expected = pool.find(name), naive.find(name)
            assert (found.id if found else None) == expected
            if found is None or expected is None:
                continue
            pool.touch([found])
            naive.touch([expected])
            held.append([expected])
        elif action == "evict":
            ids = [rng.randrange(blocks + 2) for _ in range(2)]
            assert pool.evict_blocks(ids) == naive.evict([i for i in ids if i < blocks])
        else:
            continue
        done[action] += 1
        compare(pool, naive)
    for ids in held:
        pool.free([pool.blocks[index] for index in ids])
    pool.check()
    assert pool.available == pool.total, "blocks are lost"
    done["evictions"] = pool.evicted
    return done


def compare(pool: BlockPool, naive: NaivePool) -> None:
    pool.check()
    assert pool.available == len(naive.order)
    assert [block.refs for block in pool.blocks[1:]] == naive.refs[1:]
    assert [block.keys for block in pool.blocks] == [naive.keys(b.id) for b in pool.blocks]
    assert pool.evicted == naive.evicted
    stats = pool.stats()
    assert stats.used + stats.cached + stats.free == stats.total
    assert stats.cached == len({block for block, _ in naive.filed if block in naive.order})


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), blocks=st.integers(2, 24))
def test_the_pool_agrees_with_a_naive_model(seed: int, blocks: int) -> None:
    drive(seed, 80, blocks)


def test_a_long_drive_exercises_every_operation() -> None:
    done = drive(seed=7, operations=3000, blocks=16)
    for action in ("take", "free", "touch", "file", "hit", "evict", "evictions"):
        assert done[action] > 20, f"{action} happened {done[action]} times only"


def test_the_null_block_is_never_taken_and_never_freed() -> None:
    pool = BlockPool(4)
    assert {block.id for block in pool.take(3)} == {1, 2, 3}
    pool.touch([pool.null])
    pool.free([pool.null])
    assert pool.null.refs == 1
    with pytest.raises(AssertionError, match="available"):
        pool.take(1)


def test_the_tail_of_a_sequence_is_evicted_before_its_beginning() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for number, block in enumerate(blocks):
        pool.file(block, key(f"part {number}"))
    pool.free(blocks)
    pool.take(1)
    assert pool.find(key("part 2")) is None
    assert pool.find(key("part 0")) is blocks[0]
    assert pool.find(key("part 1")) is blocks[1]


def test_the_least_recently_used_content_is_evicted_first() -> None:
    pool = BlockPool(4)
    blocks = pool.take(3)
    for name, block in zip("abc", blocks, strict=True):
        pool.file(block, key(name))
        pool.free([block])
    pool.touch([blocks[0]])
    pool.free([blocks[0]])
    pool.take(2)
    assert pool.find(key("a")) is blocks[0], "the block used last went first"
    assert pool.evicted == 2


def test_worthless_blocks_are_taken_before_content_is_lost() -> None:
    pool = BlockPool(4)
    kept, plain, _ = pool.take(3)
    pool.file(kept, key("kept"))
    pool.free([kept])
    pool.free([plain])
    assert pool.take(1) == [plain]
    assert pool.find(key("kept")) is kept


def test_blocks_of_equal_content_stand_in_for_one_another() -> None:
    pool = BlockPool(4)
    first, second = pool.take(2)
    pool.file(first, key("same"))
    pool.file(second, key("same"))
    assert pool.evict_blocks([first.id]) == 1
    assert pool.find(key("same")) is second


def test_groups_do_not_find_one_anothers_blocks() -> None:
    pool = BlockPool(3)
    (block,) = pool.take(1)
    pool.file(block, key("same", group=0))
    assert pool.find(key("same", group=1)) is None


def test_reset_forgets_everything_unless_a_block_is_held() -> None:
    pool = BlockPool(4)
    kept, held = pool.take(2)
    pool.file(kept, key("kept"))
    pool.free([kept])
    assert not pool.reset()
    assert pool.find(key("kept")) is kept, "a refused reset changed something"
    pool.free([held])
    assert pool.reset()
    assert pool.find(key("kept")) is None
    assert pool.stats().cached == 0
    pool.check()


def test_freeing_twice_is_noticed() -> None:
    pool = BlockPool(3)
    blocks = pool.take(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="freed more often"):
        pool.free(blocks)


def test_check_notices_a_reference_from_nowhere() -> None:
    pool = BlockPool(3)
    pool.blocks[2].refs += 1
    with pytest.raises(AssertionError, match="Block"):
        pool.check()
