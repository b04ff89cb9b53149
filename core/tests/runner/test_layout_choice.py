"""Groups that share memory get layouts that cut it alike."""

from __future__ import annotations

import pytest

from pegboard.api.kv import (
    FullAttentionSpec,
    KVCacheConfig,
    KVLayout,
    KVSlot,
    KVSpec,
    RecurrentSpec,
    SlidingWindowSpec,
    StateTensor,
)
from pegboard.errors import SelectionError
from pegboard.kv import form_groups
from pegboard.runner.layouts import STATE_LAYOUT, choose_layouts

APART = KVLayout("apart", ("kv", "block", "token", "head", "dim"))
TOGETHER = KVLayout("together", ("block", "kv", "token", "head", "dim"))
HEADS_FIRST = KVLayout("heads-first", ("block", "kv", "head", "token", "dim"))
FULL = FullAttentionSpec(1, 4, "float32")
WINDOW = SlidingWindowSpec(1, 4, "float32", window=9)
STATE = RecurrentSpec((StateTensor("s", (9,), "float32"),))


def cache(*specs: KVSpec) -> KVCacheConfig:
    slots = [KVSlot(number, "x", spec) for number, spec in enumerate(specs)]
    return KVCacheConfig(form_groups(slots, 4), 5)


def test_a_group_alone_gets_what_its_kernel_prefers() -> None:
    assert choose_layouts(cache(FULL), [(APART, TOGETHER)]) == (APART,)
    assert choose_layouts(cache(FULL), [(TOGETHER, APART)]) == (TOGETHER,)


def test_equal_pages_keep_the_preferred_cut() -> None:
    offers = [(APART, TOGETHER)] * 2
    assert choose_layouts(cache(FULL, WINDOW), offers) == (APART, APART)


def test_the_second_choice_serves_where_the_first_does_not_go_with_another_group() -> None:
    assert choose_layouts(cache(FULL, STATE), [(APART, TOGETHER), (STATE_LAYOUT,)]) == (
        TOGETHER,
        STATE_LAYOUT,
    )
    assert choose_layouts(cache(FULL, WINDOW), [(APART, TOGETHER), (HEADS_FIRST,)]) == (
        TOGETHER,
        HEADS_FIRST,
    )


def test_padded_pages_are_whole() -> None:
    odd = FullAttentionSpec(1, 5, "float32")
    made = cache(FULL, odd)
    assert min(group.slot_bytes() for group in made.groups) < made.page_bytes
    assert choose_layouts(made, [(APART, TOGETHER)] * 2) == (TOGETHER, TOGETHER)


def test_groups_that_cannot_share_are_refused_by_name() -> None:
    with pytest.raises(
        SelectionError, match=r"group 0 \(full\) apart, group 1 \(recurrent\) state"
    ):
        choose_layouts(cache(FULL, STATE), [(APART,), (STATE_LAYOUT,)])
