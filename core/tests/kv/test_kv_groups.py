"""Groups from slots, and the size of the cache: arithmetic that can be checked by hand."""

from __future__ import annotations

import attrs
import pytest

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.config.engine import EngineConfig
from pegboard.errors import PluginError, ResourceError
from pegboard.kv import form_groups, size_cache
from pegboard.kv.groups import blocks_for, longest_request

SMALL = FullAttentionSpec(kv_heads=2, head_size=64, dtype="bfloat16")
WIDE = FullAttentionSpec(kv_heads=2, head_size=128, dtype="bfloat16")
PAGE = 16 * 2 * (64 + 64) * 2
"""Bytes of 16 tokens in one slot of SMALL: 2 heads, keys and values of 64, 2 bytes each."""


def slots(*specs: FullAttentionSpec) -> list[KVSlot]:
    return [KVSlot(layer, "self", spec) for layer, spec in enumerate(specs)]


def config(**options: object) -> EngineConfig:
    return EngineConfig(model="m", **options)  # type: ignore[arg-type]


def test_equal_specifications_form_one_group() -> None:
    (group,) = form_groups(slots(SMALL, SMALL, SMALL), 16)
    assert group.slots == ("0.self", "1.self", "2.self")
    assert group.page_bytes() == 3 * PAGE


def test_different_specifications_form_groups_in_order_of_appearance() -> None:
    groups = form_groups(slots(WIDE, SMALL, WIDE, SMALL), 16)
    assert [(group.index, group.spec, group.slots) for group in groups] == [
        (0, WIDE, ("0.self", "2.self")),
        (1, SMALL, ("1.self", "3.self")),
    ]


def test_a_sharing_slot_takes_no_room() -> None:
    sharing = KVSlot(2, "self", shares="1.self")
    (group,) = form_groups([*slots(SMALL, SMALL), sharing], 16)
    assert group.slots == ("0.self", "1.self")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([KVSlot(0, "self", SMALL), KVSlot(0, "self", SMALL)], "'0.self' is declared twice"),
        ([KVSlot(0, "self")], "'0.self' must have either"),
        ([KVSlot(0, "self", SMALL, shares="1.self"), KVSlot(1, "self", SMALL)], "must have either"),
        (
            [KVSlot(0, "self", SMALL), KVSlot(1, "self", shares="7.self")],
            "shares='7.self'.*: 0.self",
        ),
        ([KVSlot(0, "self", shares="0.self")], "shares='0.self'.*none"),
    ],
)
def test_contradicting_slots_are_refused_by_name(bad: list[KVSlot], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        form_groups(bad, 16)


def test_memory_gives_as_many_whole_blocks_as_fit() -> None:
    groups = form_groups(slots(SMALL, SMALL), 16)
    cache = size_cache(groups, config(), available_bytes=200 * PAGE + 5, max_model_len=100)
    assert cache.num_blocks == 100
    assert cache.bytes() == 200 * PAGE
    assert "profile leaves" in cache.reason and "100 blocks" in cache.reason


def test_given_bytes_win_over_the_profile_and_a_given_count_wins_over_both() -> None:
    groups = form_groups(slots(SMALL), 16)
    given = config(kv_cache_memory_bytes=50 * PAGE)
    assert size_cache(groups, given, 10**9, 64).num_blocks == 50
    both = config(kv_cache_memory_bytes=50 * PAGE, num_gpu_blocks_override=9)
    cache = size_cache(groups, both, 10**9, 64)
    assert cache.num_blocks == 9
    assert "num_gpu_blocks_override" in cache.reason


def test_one_request_fits_exactly_or_not_at_all() -> None:
    groups = form_groups(slots(SMALL), 16)
    assert size_cache(groups, config(num_gpu_blocks_override=5), 0, 64).num_blocks == 5
    with pytest.raises(ResourceError):
        size_cache(groups, config(num_gpu_blocks_override=4), 0, 64)


def test_the_refusal_says_what_would_fit() -> None:
    groups = form_groups(slots(SMALL), 16)
    with pytest.raises(ResourceError) as caught:
        size_cache(groups, config(), available_bytes=4 * PAGE, max_model_len=100)
    text = str(caught.value)
    assert "max_model_len=100" in text
    assert "at most 48" in text, "three blocks beside the null block hold 48 tokens"
    assert str(8 * PAGE) in text, "seven blocks and the null block are needed"
    # What it says does fit.
    assert size_cache(groups, config(), 4 * PAGE, 48).num_blocks == 4
    assert size_cache(groups, config(kv_cache_memory_bytes=8 * PAGE), 0, 100).num_blocks == 8


def test_without_any_memory_only_more_memory_helps() -> None:
    groups = form_groups(slots(SMALL), 16)
    with pytest.raises(ResourceError, match="kv_cache_memory_bytes") as caught:
        size_cache(groups, config(), available_bytes=-5, max_model_len=100)
    assert "max_model_len to" not in str(caught.value)


def test_a_request_takes_blocks_in_every_group() -> None:
    other = attrs.evolve(SMALL, kv_heads=1, head_size=128)
    groups = form_groups(slots(SMALL, other), 16)
    assert blocks_for(groups, 33) == 6
    assert longest_request(groups, 6) == 48
    assert longest_request(groups, 7) == 48
    assert longest_request(groups, 1) == 0


def test_a_model_without_cache_needs_none() -> None:
    assert size_cache((), config(), 0, 100).bytes() == 0


def test_an_automatic_cache_is_no_larger_than_four_full_loads() -> None:
    groups = form_groups([KVSlot(0, "self", FullAttentionSpec(1, 8, "float32"))], 16)
    config = EngineConfig(model="m", max_num_seqs=4)
    cache = size_cache(groups, config, 1 << 40, max_model_len=64)
    assert cache.num_blocks == 1 + 4 * 4 * (64 // 16)
    assert "enough for 4 times what max_num_seqs=4" in cache.reason
    asked = attrs.evolve(config, kv_cache_memory_bytes=1 << 20)
    assert size_cache(groups, asked, 0, max_model_len=64).num_blocks == (1 << 20) // (16 * 64)
