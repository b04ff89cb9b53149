"""How layers' slots form groups, and what a request takes in them. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.api.kv import EncoderOnlySpec, KVCacheConfig, KVGroup, KVSlot, KVSpec
from pegboard.errors import PluginError
from pegboard.kv.lanes import block_sizes, count_lanes

__all__ = ["block_bytes", "blocks_for", "form_groups", "longest_request"]

_ENDLESS = 1 << 31
"""Tokens of a request that needs no more blocks, however long it gets."""


def form_groups(slots: Sequence[KVSlot], block_size: int) -> tuple[KVGroup, ...]:
    """Put slots with equal specifications into groups, kinds in order of first appearance.

    A kind has as many groups as the lanes demand, its slots in the order of the model; block sizes
    are multiples of `block_size`. `pegboard.kv.lanes` says how both are chosen. A slot that shares
    another's storage takes no room and stands in no group. Raises `PluginError` where the model
    family declared slots that contradict one another.
    """
    own = {slot.key: slot for slot in slots if slot.shares is None}
    _check_slots(slots, own)
    by_spec: dict[KVSpec, list[str]] = {}
    for key, slot in own.items():
        assert slot.spec is not None
        by_spec.setdefault(slot.spec, []).append(key)
    counts = {spec: len(keys) for spec, keys in by_spec.items()}
    lanes, sizes = count_lanes(counts), block_sizes(counts, block_size)
    parts = [
        (spec, keys[start : start + step])
        for spec, keys in by_spec.items()
        for step in [len(keys) if isinstance(spec, EncoderOnlySpec) else lanes]
        for start in range(0, len(keys), step)
    ]
    return tuple(
        KVGroup(index=index, spec=spec, block_size=sizes[spec], slots=tuple(keys))
        for index, (spec, keys) in enumerate(parts)
    )


def _check_slots(slots: Sequence[KVSlot], own: dict[str, KVSlot]) -> None:
    seen: set[str] = set()
    for slot in slots:
        if slot.key in seen:
            raise PluginError(f"KV slot {slot.key!r} is declared twice")
        seen.add(slot.key)
        if (slot.spec is None) == (slot.shares is None):
            raise PluginError(
                f"KV slot {slot.key!r} must have either a spec or shares=, not both or none"
            )
        if slot.shares is not None and slot.shares not in own:
            raise PluginError(
                f"KV slot {slot.key!r} has shares={slot.shares!r}; allowed are slots with storage: "
                + (", ".join(own) or "none")
            )


def block_bytes(groups: Sequence[KVGroup]) -> int:
    """Bytes of one block of the pool, whichever group holds it."""
    return KVCacheConfig(tuple(groups), 1).block_bytes


def blocks_for(groups: Sequence[KVGroup], tokens: int, budget: int | None = None) -> int:
    """Blocks, over all groups, that a request of `tokens` tokens holds at most at any one time.

    `budget` is the most tokens of one step; without it a whole prompt may be one step.
    """
    return sum(group.spec.blocks_for(tokens, group.block_size, budget) for group in groups)


def longest_request(groups: Sequence[KVGroup], blocks: int, budget: int | None = None) -> int:
    """Most tokens that one request can have in `blocks` blocks (the null block not among them)."""
    size = min((group.block_size for group in groups), default=1)
    low, high = 0, -(-_ENDLESS // size)  # in units of `size` tokens
    while low < high:
        middle = (low + high + 1) // 2
        if blocks_for(groups, middle * size, budget) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low * size
