"""The report on the cache: checked by hand, for models whose layers cost unlike amounts."""

from __future__ import annotations

import pytest

from pegboard.api.kv import (
    FullAttentionSpec,
    KVCacheConfig,
    KVGroup,
    KVSlot,
    RecurrentSpec,
    SlidingWindowSpec,
    StateMode,
    StateTensor,
)
from pegboard.config.engine import EngineConfig
from pegboard.errors import ResourceError
from pegboard.kv import block_bytes, form_groups, size_cache
from pegboard.kv.groups import blocks_for

FULL = FullAttentionSpec(1, 8, "float32")
"""64 bytes per token: 1 KiB per 16 tokens."""


def states(mode: StateMode, nbytes: int = 3000) -> RecurrentSpec:
    return RecurrentSpec((StateTensor("s", (nbytes // 4,), "float32"),), mode)


def hybrid(mode: StateMode = "align") -> tuple[KVGroup, ...]:
    """Four layers of states, one of attention: a state needs 3008 bytes, three base blocks."""
    slots = [KVSlot(i, "state", states(mode)) for i in range(4)]
    return form_groups([*slots, KVSlot(4, "self", FULL)], 16)


def config(**options: object) -> EngineConfig:
    return EngineConfig(model="m", max_num_batched_tokens=128, **options)  # type: ignore[arg-type]


def test_the_report_says_what_a_block_is_and_what_fits() -> None:
    groups = hybrid()
    cache = size_cache(groups, config(num_gpu_blocks_override=101), 0, max_model_len=960)
    assert cache.lanes == 1 and cache.page_bytes == 3072
    for words in (
        "num_gpu_blocks_override asks for 101 blocks of 3.00 KiB. ",
        "A block is 1 lane of 3.00 KiB; ",
        "group 0 (recurrent, 1 slot): a block is a state, kept every 48 tokens, 2.1% of it "
        "padding, a request of full length holds 2; ",
        "group 4 (full, 1 slot): a block is 48 tokens, a request of full length holds 20. ",
        "A request of max_model_len=960 tokens holds up to 28 blocks, 3.57 of them fit at once; ",
        "the longest request that fits alone has 4416 tokens.",
    ):
        assert words in cache.reason, cache.reason


def test_states_that_are_not_kept_are_called_so() -> None:
    cache = size_cache(hybrid("none"), config(num_gpu_blocks_override=101), 0, 960)
    assert "group 0 (recurrent, 1 slot): a block is a state, 2.1% of it padding" in cache.reason
    assert "holds up to 24 blocks" in cache.reason


def test_empty_lanes_count_as_padding() -> None:
    slots = [KVSlot(i, "self", FULL) for i in range(4)]
    windows = [KVSlot(i, "w", SlidingWindowSpec(1, 8, "float32", window=32)) for i in range(3)]
    cache = size_cache(form_groups([*slots, *windows], 16), config(), 10**7, 960)
    assert cache.lanes == 4
    assert "group 0 (full, 4 slots): a block is 16 tokens, a" in cache.reason
    assert "group 1 (sliding, 3 slots): a block is 16 tokens, 25.0% of it padding" in cache.reason


def test_a_model_of_states_only_has_no_longest_request() -> None:
    groups = form_groups([KVSlot(0, "state", states("align"))], 16)
    cache = size_cache(groups, config(num_gpu_blocks_override=3), 0, 10**6)
    assert "no length of a request is too long" in cache.reason
    assert "1.00 of them fit at once" in cache.reason


def test_memory_and_overrides_size_a_hybrid_by_its_pages() -> None:
    groups, page = hybrid(), 3072
    assert block_bytes(groups) == page
    assert size_cache(groups, config(), 50 * page + 5, 960).num_blocks == 50
    given = config(kv_cache_memory_bytes=40 * page - 1)
    assert size_cache(groups, given, 0, 960).num_blocks == 39
    both = config(kv_cache_memory_bytes=10**6, num_gpu_blocks_override=31)
    assert size_cache(groups, both, 10**9, 960).bytes() == 31 * page


@pytest.mark.parametrize("mode", ["none", "align", "all"])
def test_a_hybrid_request_fits_exactly_or_not_at_all(mode: StateMode) -> None:
    groups = hybrid(mode)
    need = blocks_for(groups, 960, 128) + 1
    assert need == 1 + 20 + 4 * {"none": 1, "align": 2, "all": 4}[mode]
    assert size_cache(groups, config(num_gpu_blocks_override=need), 0, 960).num_blocks == need
    with pytest.raises(ResourceError, match=r"lower max_model_len to at most (\d+)") as caught:
        size_cache(groups, config(num_gpu_blocks_override=need - 1), 0, 960)
    longest = int(str(caught.value).partition("at most ")[2].split(",")[0])
    assert longest == 19 * 48
    size_cache(groups, config(num_gpu_blocks_override=need - 1), 0, longest)


def test_a_cache_that_keeps_nothing_says_so() -> None:
    assert size_cache((), config(), 10**6, 100) == KVCacheConfig((), 1, "The model caches nothing.")
