"""How layers' slots form groups, and how many blocks the cache gets. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.api.kv import EncoderOnlySpec, KVCacheConfig, KVGroup, KVSlot, KVSpec
from pegboard.config.engine import EngineConfig
from pegboard.errors import PluginError, ResourceError
from pegboard.kv.lanes import block_sizes, count_lanes

__all__ = ["block_bytes", "blocks_for", "form_groups", "longest_request", "size_cache"]

USEFUL_LOADS = 4
"""Times the blocks of a full load (every request as long as the context) that an automatic cache
has at most. More would never be filled by a small model, but the books of millions of blocks cost
memory and time."""

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


def size_cache(
    groups: Sequence[KVGroup], config: EngineConfig, available_bytes: int, max_model_len: int
) -> KVCacheConfig:
    """Decide how many blocks the cache has.

    `num_gpu_blocks_override` wins over `kv_cache_memory_bytes`, which wins over `available_bytes`
    (what the profile left for the cache). Raises `ResourceError`, saying what would fit, if one
    request of `max_model_len` tokens cannot be held.
    """
    page = block_bytes(groups)
    if not page:
        return KVCacheConfig(tuple(groups), num_blocks=1, reason="The model caches nothing.")
    one = blocks_for(groups, max_model_len, config.max_num_batched_tokens)
    useful = 1 + USEFUL_LOADS * config.max_num_seqs * one
    blocks, reason = _count_blocks(config, page, available_bytes, useful)
    _check_fit(groups, config, blocks, reason, max_model_len)
    return KVCacheConfig(groups=tuple(groups), num_blocks=blocks, reason=f"{reason}.")


def _count_blocks(
    config: EngineConfig, page: int, available_bytes: int, useful: int
) -> tuple[int, str]:
    """Number of blocks, and where it comes from; `useful` bounds what is not asked for."""
    override = config.num_gpu_blocks_override
    if override is not None:
        return override, f"num_gpu_blocks_override asks for {override} blocks of {_size(page)}"
    given = config.kv_cache_memory_bytes
    room = max(given if given is not None else available_bytes, 0)
    source = "kv_cache_memory_bytes gives" if given is not None else "the profile leaves"
    blocks = room // page
    reason = f"{source} {_size(room)}, which is {blocks} blocks of {_size(page)}"
    if given is None and blocks > useful:
        full = f"{USEFUL_LOADS} times what max_num_seqs={config.max_num_seqs} requests can hold"
        return useful, f"{reason}; {useful} are enough for {full}"
    return blocks, reason


def _check_fit(
    groups: Sequence[KVGroup], config: EngineConfig, blocks: int, reason: str, max_model_len: int
) -> None:
    budget, page = config.max_num_batched_tokens, block_bytes(groups)
    need = blocks_for(groups, max_model_len, budget) + 1
    if blocks >= need:
        return
    longest = longest_request(groups, blocks - 1, budget) if blocks > 1 else 0
    remedy = f"lower max_model_len to at most {longest}, or " if longest else ""
    raise ResourceError(
        f"The KV cache cannot hold one request of max_model_len={max_model_len} tokens: {reason}, "
        f"and {need} are needed (the null block included); {remedy}set kv_cache_memory_bytes to "
        f"at least {need * page} ({_size(need * page)})."
    )


def _size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
