"""Will it fit? Arithmetic on estimates, before a byte of the weights is read."""

from __future__ import annotations

import attrs

from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.errors import ResourceError
from pegboard.kv.groups import block_bytes, blocks_for, form_groups, longest_request
from pegboard.kv.sizing import size_cache

__all__ = ["DeviceMemory", "check_fit", "request_bytes"]

_GIB = 1024**3
_NULL_BLOCK = 1


@attrs.frozen
class DeviceMemory:
    """Bytes of a device, as its platform reports them before loading."""

    total: int
    free: int

    def usable(self, utilization: float) -> int:
        """Bytes that an engine may take: its share of the whole, and never more than what is
        free."""
        return min(self.free, int(self.total * utilization))


def request_bytes(
    model: ResolvedModel, block_size: int, tokens: int, budget: int | None = None
) -> int:
    """Least cache, in bytes, in which one request of `tokens` tokens runs, with at most `budget`
    of them in a step; the null block included."""
    groups = form_groups(model.facts.kv_slots, block_size)
    return (blocks_for(groups, tokens, budget) + _NULL_BLOCK) * block_bytes(groups)


def check_fit(model: ResolvedModel, config: EngineConfig, memory: DeviceMemory) -> None:
    """Refuse a model that cannot fit.

    Weights are estimated from the checkpoint; the cache must hold one request of ``max_model_len``
    tokens, or be as big as the settings ask (and then hold that request too). Raises
    `ResourceError` that names the shortfall and what would fit.
    """
    if _cache_given(config):  # too small a one would be found after loading only
        groups = form_groups(model.facts.kv_slots, config.block_size)
        size_cache(groups, config, 0, model.max_model_len)
    usable = memory.usable(config.gpu_memory_utilization)
    cache = _cache_bytes(model, config)
    needed = model.weight_bytes + cache
    if needed <= usable:
        return
    raise ResourceError(
        f"the model does not fit: its weights take about {_size(model.weight_bytes)} and "
        f"{_cache_words(model, config)} "
        f"takes {_size(cache)}, together {_size(needed)}, but {_size(usable)} of memory is "
        f"available, "
        f"{_size(needed - usable)} too little. {_remedy(model, config, usable)}"
    )


def _cache_given(config: EngineConfig) -> bool:
    return config.num_gpu_blocks_override is not None or config.kv_cache_memory_bytes is not None


def _cache_bytes(model: ResolvedModel, config: EngineConfig) -> int:
    if config.num_gpu_blocks_override is not None:
        groups = form_groups(model.facts.kv_slots, config.block_size)
        return config.num_gpu_blocks_override * block_bytes(groups)
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    budget = config.max_num_batched_tokens
    return request_bytes(model, config.block_size, model.max_model_len, budget)


def _cache_words(model: ResolvedModel, config: EngineConfig) -> str:
    if config.num_gpu_blocks_override is not None:
        return f"a KV cache of num_gpu_blocks_override={config.num_gpu_blocks_override} blocks"
    if config.kv_cache_memory_bytes is not None:
        return f"a KV cache of kv_cache_memory_bytes={config.kv_cache_memory_bytes}"
    return f"the KV cache for one request of max_model_len={model.max_model_len} tokens"


def _remedy(model: ResolvedModel, config: EngineConfig, usable: int) -> str:
    needed = model.weight_bytes + _cache_bytes(model, config)
    room = usable - model.weight_bytes
    lead = f"What would fit: {_size(needed)} of usable memory, or"
    hopeless = f"{lead} weights of a smaller type or model; no max_model_len would help."
    if room < 0:
        return hopeless
    if _cache_given(config):
        return f"{lead} a KV cache of at most {_size(room)}."
    longest = _longest(model, config, room)
    return f"{lead} max_model_len={longest}." if longest else hopeless


def _longest(model: ResolvedModel, config: EngineConfig, available: int) -> int:
    """Most tokens of one request whose cache fits into `available` bytes; 0 if none does."""
    groups = form_groups(model.facts.kv_slots, config.block_size)
    if not block_bytes(groups):
        return model.max_model_len
    blocks = max(available // block_bytes(groups) - _NULL_BLOCK, 0)
    longest = longest_request(groups, blocks, config.max_num_batched_tokens)
    return min(longest, model.max_model_len)


def _size(count: int) -> str:
    """Bytes for people."""
    for unit, size in (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} bytes"
