"""How many blocks the cache gets, and the words that say why."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from pegboard.api.kv import KVCacheConfig, KVGroup
from pegboard.config.engine import EngineConfig
from pegboard.errors import ResourceError
from pegboard.kv.groups import block_bytes, blocks_for, longest_request
from pegboard.kv.lanes import NO_BORDER

__all__ = ["describe_cache", "size_cache"]

USEFUL_LOADS = 4
"""Times the blocks of a full load (every request as long as the context) that an automatic cache
has at most. More would never be filled by a small model, but the books of millions of blocks cost
memory and time."""


def size_cache(
    groups: Sequence[KVGroup], config: EngineConfig, available_bytes: int, max_model_len: int
) -> KVCacheConfig:
    """Decide how many blocks the cache has.

    `num_gpu_blocks_override` wins over `kv_cache_memory_bytes`, which wins over `available_bytes`
    (what the profile left for the cache). Raises `ResourceError`, saying what would fit, if one
    request of `max_model_len` tokens cannot be held.
    """
    block = block_bytes(groups)
    if not block:
        return KVCacheConfig(tuple(groups), num_blocks=1, reason="The model caches nothing.")
    one = blocks_for(groups, max_model_len, config.max_num_batched_tokens)
    useful = 1 + USEFUL_LOADS * config.max_num_seqs * one
    blocks, reason = _count_blocks(config, block, available_bytes, useful)
    _check_fit(groups, config, blocks, reason, max_model_len)
    cache = KVCacheConfig(tuple(groups), blocks)
    words = describe_cache(cache, config.max_num_batched_tokens, max_model_len)
    return attrs.evolve(cache, reason=f"{reason}. {words}")


def describe_cache(cache: KVCacheConfig, budget: int, max_model_len: int) -> str:
    """What a block is, what the groups make of it, and what fits into all blocks together.

    `budget` is the most tokens of one step.
    """
    kept = [group for group in cache.groups if group.slot_bytes()]
    usable = cache.num_blocks - 1
    one = blocks_for(cache.groups, max_model_len, budget)
    parts = "; ".join(_group_words(cache, group, budget, max_model_len) for group in kept)
    together = f", {usable / one:.2f} of them fit at once" if one else ""
    return (
        f"A block is {_count(cache.lanes, 'lane')} of {_size(cache.page_bytes)}; {parts}. "
        f"A request of max_model_len={max_model_len} tokens holds up to "
        f"{_count(one, 'block')}{together}; {_longest(cache, budget)}."
    )


def _group_words(cache: KVCacheConfig, group: KVGroup, budget: int, tokens: int) -> str:
    """One group: its slots, its blocks, and what it leaves empty of them."""
    used = group.page_bytes() / cache.block_bytes
    stands = "a state" if group.block_size == NO_BORDER else f"{group.block_size} tokens"
    if group.spec.kind == "recurrent" and group.block_size != NO_BORDER:
        stands = f"a state, kept every {group.block_size} tokens"
    empty = f", {1 - used:.1%} of it padding" if used < 1 else ""
    most = group.spec.blocks_for(tokens, group.block_size, budget)
    return (
        f"group {group.index} ({group.spec.kind}, {_count(len(group.slots), 'slot')}): a block "
        f"is {stands}{empty}, a request of full length holds {most}"
    )


def _longest(cache: KVCacheConfig, budget: int) -> str:
    if not any(group.spec.grows for group in cache.groups):
        return "no length of a request is too long for the blocks"
    longest = longest_request(cache.groups, cache.num_blocks - 1, budget)
    return f"the longest request that fits alone has {longest} tokens"


def _count_blocks(
    config: EngineConfig, block: int, available_bytes: int, useful: int
) -> tuple[int, str]:
    """Number of blocks, and where it comes from; `useful` bounds what is not asked for."""
    override = config.num_gpu_blocks_override
    if override is not None:
        return override, f"num_gpu_blocks_override asks for {override} blocks of {_size(block)}"
    given = config.kv_cache_memory_bytes
    room = max(given if given is not None else available_bytes, 0)
    source = "kv_cache_memory_bytes gives" if given is not None else "the profile leaves"
    blocks = room // block
    reason = f"{source} {_size(room)}, which is {blocks} blocks of {_size(block)}"
    if given is None and blocks > useful:
        full = f"{USEFUL_LOADS} times what max_num_seqs={config.max_num_seqs} requests can hold"
        return useful, f"{reason}; {useful} are enough for {full}"
    return blocks, reason


def _check_fit(
    groups: Sequence[KVGroup], config: EngineConfig, blocks: int, reason: str, max_model_len: int
) -> None:
    budget, block = config.max_num_batched_tokens, block_bytes(groups)
    need = blocks_for(groups, max_model_len, budget) + 1
    if blocks >= need:
        return
    longest = longest_request(groups, blocks - 1, budget) if blocks > 1 else 0
    remedy = f"lower max_model_len to at most {longest}, or " if longest else ""
    raise ResourceError(
        f"The KV cache cannot hold one request of max_model_len={max_model_len} tokens: {reason}, "
        f"and {need} are needed (the null block included); {remedy}set kv_cache_memory_bytes to "
        f"at least {need * block} ({_size(need * block)})."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _size(count: int) -> str:
    """Bytes for people."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
