"""How unlike layers share one memory: the number of lanes, and block sizes that make pages equal.

**Lanes.** Slots of a kind are split into groups of at most `lanes` slots. A lane that a group
leaves empty is wasted in every block of the group, so few lanes waste little; but each group costs
host time in every step, so many lanes (few groups) are fast. Of all numbers of lanes that keep the
wasted share of every kind within a limit, the one with the fewest groups is taken, then the one
that wastes the fewest lanes. The limit is 1/16 for kinds whose blocks grow with the request and 1/4
for those that hold a few blocks whatever its length (windows, states). One lane wastes nothing, so
there is always a choice. For example 15 sliding and 3 full layers take 3 lanes (five groups and
one), 52 and 10 take 10 (six and one; 8 of 60 lanes stay empty).

**Pages.** A block takes the same bytes whichever group holds it. Every kind that stores tokens gets
the multiple of the base block size that fills the page best. Pages are searched among the multiples
of what one base block of each kind takes, from the largest need of any kind (a state has to fit in
one page) upwards: the smallest page that wastes at most 1/32 of the memory, else the one that
wastes least. What is then left of a page is padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pegboard.api.kv import EncoderOnlySpec, KVSpec, RecurrentSpec

__all__ = ["NO_BORDER", "block_sizes", "count_lanes"]

NO_BORDER = 1 << 30
"""Block size of a recurrent state of which no copies are kept: longer than any request."""

_GROWING_WASTE = 1 / 16
_BOUNDED_WASTE = 1 / 4
_PAGE_WASTE = 1 / 32
_MULTIPLES = 4


def count_lanes(counts: Mapping[KVSpec, int]) -> int:
    """Lanes for so many slots of each kind; 0 if nothing is kept."""
    kept = {spec: count for spec, count in counts.items() if not isinstance(spec, EncoderOnlySpec)}
    allowed = [
        lanes
        for lanes in range(1, max(kept.values(), default=0) + 1)
        if all(_wasted_share(count, lanes) <= _limit(spec) for spec, count in kept.items())
    ]

    def cost(lanes: int) -> tuple[int, int]:
        groups = sum(-(-count // lanes) for count in kept.values())
        return groups, groups * lanes

    return min(allowed, key=cost, default=0)


def _limit(spec: KVSpec) -> float:
    return _GROWING_WASTE if spec.grows else _BOUNDED_WASTE


def _wasted_share(count: int, lanes: int) -> float:
    """Share of the lanes of so many slots' groups that stays empty."""
    taken = -(-count // lanes) * lanes
    return (taken - count) / taken


def block_sizes(counts: Mapping[KVSpec, int], base: int) -> dict[KVSpec, int]:
    """Tokens per block of each kind: multiples of `base`, but `NO_BORDER` for states that are not
    kept."""
    paged: dict[KVSpec, int] = {
        spec: base * spec.token_bytes()
        for spec in counts
        if not isinstance(spec, (EncoderOnlySpec, RecurrentSpec))
    }
    states: dict[KVSpec, int] = {
        spec: spec.page_bytes(base) for spec in counts if isinstance(spec, RecurrentSpec)
    }
    sizes: dict[KVSpec, int] = dict.fromkeys(counts, base)
    if paged:
        page = _choose_page({**paged, **states}, list(paged.values()), counts)
        sizes |= {spec: page // need * base for spec, need in paged.items()}
    # Keeping a state costs a block: it is worth that only as often as the other kinds fill one.
    border = max((sizes[spec] for spec in paged), default=base)
    sizes |= {
        spec: NO_BORDER if spec.cache == "none" else border
        for spec in states
        if isinstance(spec, RecurrentSpec)
    }
    return sizes


def _choose_page(
    needs: Mapping[KVSpec, int], paged: list[int], counts: Mapping[KVSpec, int]
) -> int:
    """Bytes of a page; `needs` are those of one base block or state, `paged` only of blocks."""
    waste = {
        page: sum(counts[spec] * _padding(spec, need, page) for spec, need in needs.items())
        / (page * sum(counts[spec] for spec in needs))
        for page in _candidates(max(needs.values()), paged)
    }
    good = [page for page, share in waste.items() if share <= _PAGE_WASTE]
    return min(good) if good else min(waste, key=lambda page: (waste[page], page))


def _candidates(least: int, paged: list[int]) -> Iterator[int]:
    for need in paged:
        first = -(-least // need)
        yield from (need * multiple for multiple in range(first, first + _MULTIPLES))


def _padding(spec: KVSpec, need: int, page: int) -> int:
    return page - need if isinstance(spec, RecurrentSpec) else page % need
