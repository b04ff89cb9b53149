"""The longest common hit, against the plain definition: try every length, ask for every token.

The model keeps, per group, which tokens' content the pool can give, and knows what each kind must
have of a beginning. It knows nothing of scanning from either end or of rounds.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from pegboard.api.kv import (
    ChunkedLocalSpec,
    KVCacheConfig,
    KVGroup,
    KVSlot,
    RecurrentSpec,
    SlidingWindowSpec,
)
from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.kv import Allocation, Block, Hit, KVManager, KVRequest, form_groups
from pegboard.testing.toy_kinds import TOY_KINDS

CACHEABLE = sorted(
    name for name in TOY_KINDS if not any(word in name for word in ("cross", "encoder", "without"))
)
CACHEABLE.remove("all")


def make(kinds: str, blocks: int, size: int = 4) -> KVManager:
    slots = [KVSlot(layer, "self", spec) for layer, spec in enumerate(TOY_KINDS[kinds])]
    return KVManager(KVCacheConfig(form_groups(slots, size), blocks), budget=30)


def open_request(kv: KVManager, ids: list[int]) -> KVRequest:
    return kv.open(EngineRequest("r", ids, SamplingParams(), seed=0))


class Reference:
    """What the pool's blocks hold: per group and block, the ids up to each filed border."""

    def __init__(self, kv: KVManager) -> None:
        self.kv = kv

    def units(self, group: KVGroup, ids: list[int]) -> set[int]:
        """Borders, in hash units, up to which some block of the group has content of `ids`."""
        request = open_request(self.kv, ids)
        self.kv._hash(request, len(ids) // self.kv.prefix_match_unit)
        filed = {key for block in self.kv.pool.blocks for key in block.keys}
        return {n + 1 for n, name in enumerate(request.hashes) if (group.index, name) in filed}

    def can_resume(self, group: KVGroup, have: set[int], units: int) -> bool:
        """The group has what a beginning of `units` units must have."""
        unit = self.kv.prefix_match_unit
        tokens, per = units * unit, group.block_size // unit
        spec = group.spec
        if isinstance(spec, RecurrentSpec):
            return tokens % group.block_size == 0 and units in have
        first = 0
        if isinstance(spec, SlidingWindowSpec):
            first = max(0, tokens - spec.window + 1)
        elif isinstance(spec, ChunkedLocalSpec):
            first = tokens - tokens % spec.chunk
        # Each block that holds a needed token must be there up to its end, or the beginning's.
        blocks = {token // group.block_size for token in range(first, tokens)}
        return all(min((block + 1) * per, units) in have for block in blocks)

    def longest(self, ids: list[int], limit: int) -> int:
        """In tokens."""
        unit = self.kv.prefix_match_unit
        have = [(group, self.units(group, ids)) for group in self.kv.groups]
        for units in range(limit // unit, 0, -1):
            if all(self.can_resume(group, borders, units) for group, borders in have):
                return units * unit
        return 0


class World:
    """Requests that share beginnings come, compute in chunks, and go; blocks are evicted."""

    def __init__(self, kinds: str, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kv = make(kinds, blocks=60)
        self.reference = Reference(self.kv)
        self.live: list[tuple[KVRequest, int]] = []
        self.loose: list[Block] = []
        self.done = Counter[str]()

    def prompt(self) -> list[int]:
        stem = [(self.rng.randrange(2) * 7 + i) % 9 for i in range(self.rng.randrange(90))]
        return [*range(self.rng.choice([8, 40, 80])), *stem[: self.rng.randrange(1, 30)], 5]

    def begin(self) -> None:
        """Look up, compare, start if there is room."""
        ids = self.prompt()
        request, limit = open_request(self.kv, ids), len(ids) - 1
        hit = self.kv.match(request, limit)
        assert hit.tokens == self.reference.longest(ids, limit), f"{len(ids)} tokens"
        shorter = self.reference.longest(ids, self.rng.randrange(limit + 1))
        unit = self.kv.prefix_match_unit
        again = self.kv.cached_units(request, limit, known=shorter // unit)
        assert again * unit == hit.tokens, f"{shorter} of {len(ids)} tokens known"
        self.note(hit)
        want = Allocation(request, hit.tokens, self.kv.cut(hit.tokens, 1), given=hit)
        if self.kv.allocate(want) is not None:
            self.loose = [source.block for source in hit.sources]
            self.kv.check([r for r, _ in self.live] + [request], [], self.loose)
            self.kv.release(self.loose)
            self.live.append((request, hit.tokens))

    def note(self, hit: Hit) -> None:
        self.done["looked"] += 1
        self.done["hit"] += hit.tokens > 0
        self.done["part"] += bool(hit.sources)
        null = self.kv.pool.null
        self.done["skipped"] += any(null in blocks for blocks in hit.blocks)

    def advance(self) -> None:
        """One chunk of one request, as the scheduler would run it."""
        if not self.live:
            return
        number = self.rng.randrange(len(self.live))
        request, computed = self.live[number]
        rest = len(request.prompt_ids) - computed
        count = self.kv.cut(computed, min(rest, self.rng.randrange(1, 30))) if rest else 0
        if not count or self.kv.allocate(Allocation(request, computed, count)) is None:
            self.kv.free(self.live.pop(number)[0])
            return
        self.kv.commit(request, computed + count)
        self.kv.forget(request, computed + count)
        self.live[number] = (request, computed + count)

    def evict(self) -> None:
        self.done["evicted"] += self.kv.evict([self.rng.randrange(60) for _ in range(3)])

    def run(self, operations: int) -> None:
        actions = [self.begin] * 3 + [self.advance] * 12 + [self.evict]
        for _ in range(operations):
            self.rng.choice(actions)()
            self.kv.check([request for request, _ in self.live], [], [])
        for request, _ in self.live:
            self.kv.free(request)
        self.kv.check([], [], [])
        assert self.kv.reset(), "a block is lost"


@pytest.mark.parametrize("kinds", CACHEABLE)
def test_the_hit_is_the_longest_that_every_group_can_resume(kinds: str) -> None:
    done = Counter[str]()
    for seed in range(4):
        world = World(kinds, seed)
        world.run(200)
        done += world.done
    assert done["hit"] > 10, done
    assert done["evicted"] > 10, done
    if any(word in kinds for word in ("two sizes", "wide")):
        assert done["part"] > 3, done
    if any(word in kinds for word in ("sliding", "chunked", "state")):
        assert done["skipped"] > 3, done


@pytest.mark.accept
@pytest.mark.parametrize("kinds", CACHEABLE)
def test_the_hit_is_the_longest_over_many_operations(kinds: str) -> None:
    for seed in range(10, 20):
        World(kinds, seed).run(1000)
