"""Which layout each group's storage gets: groups that share memory must cut it into equal blocks.

A page is one run of bytes if the block axis is the outermost, else one run for each index of the
axes outside it. States are one run, and a padded page can only be one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from pegboard.api.kv import KVCacheConfig, KVGroup, KVLayout, RecurrentSpec
from pegboard.errors import SelectionError

__all__ = ["STATE_LAYOUT", "check_cuts", "choose_layouts"]

STATE_LAYOUT = KVLayout("state", ("block",))
"""Of groups of states, which have shapes of their own inside a page."""


def choose_layouts(
    cache: KVCacheConfig, offers: Sequence[Sequence[KVLayout]]
) -> tuple[KVLayout, ...]:
    """A layout for each group, from what its kernel offers, the preferred first.

    The first layout of the first group decides, unless other groups offer none that goes with it:
    then its second one, and so on. Raises `SelectionError` if the groups cannot share memory.
    """
    cuts = dict.fromkeys(_cut(layout) for layouts in offers for layout in layouts)
    for cut in cuts:
        chosen = tuple(
            next((layout for layout in layouts if _cut(layout) == cut), layouts[0])
            for layouts in offers
        )
        if not _conflict(cache, chosen):
            return chosen
    first = tuple(layouts[0] for layouts in offers)
    check_cuts(cache, first)
    return first


def check_cuts(cache: KVCacheConfig, layouts: Sequence[KVLayout]) -> None:
    """Raise `SelectionError`, naming the layouts, if a block is not the same bytes in all groups
    that keep something."""
    if not _conflict(cache, layouts):
        return
    names = ", ".join(
        f"group {group.index} ({group.spec.kind}) {layout.name}"
        for group, layout in _kept(cache, layouts)
    )
    raise SelectionError(
        f"KV groups share memory, but their layouts cut it into different blocks: {names}; "
        f"layouts with the block axis outermost fit all groups"
    )


def _conflict(cache: KVCacheConfig, layouts: Sequence[KVLayout]) -> bool:
    kept = _kept(cache, layouts)
    if len(kept) < 2:
        return False
    runs = [_runs(group, layout) for group, layout in kept]
    padded = any(group.slot_bytes() < cache.page_bytes for group, _ in kept)
    return len(set(runs)) > 1 or (padded and runs[0] > 1)


def _kept(cache: KVCacheConfig, layouts: Sequence[KVLayout]) -> list[tuple[KVGroup, KVLayout]]:
    pairs = zip(cache.groups, layouts, strict=True)
    return [(group, layout) for group, layout in pairs if group.slot_bytes()]


def _cut(layout: KVLayout) -> tuple[str, ...]:
    """The axes outside the block axis."""
    return layout.axes[: layout.axes.index("block")]


def _runs(group: KVGroup, layout: KVLayout) -> int:
    """Runs of bytes that a page consists of."""
    if isinstance(group.spec, RecurrentSpec):
        return 1
    return prod(layout.shape(group.spec, 1, group.block_size)[: layout.axes.index("block")])
