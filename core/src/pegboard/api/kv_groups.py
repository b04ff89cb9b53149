"""What layers cache, and how slots form groups. Part of `pegboard.api.kv`."""

from __future__ import annotations

import attrs

from pegboard.api.kv_specs import KVSpec

__all__ = ["KVGroup", "KVSlot"]

_PAGE_ALIGNMENT = 64
"""Bytes that a page is rounded up to where groups of different pages share lanes."""


@attrs.frozen
class KVSlot:
    """One cached thing of one layer. Its key is ``"<layer>.<name>"``."""

    layer: int
    name: str
    spec: KVSpec | None = None
    shares: str | None = None
    """Key of the slot whose storage this one reads, instead of `spec`."""

    @property
    def key(self) -> str:
        return f"{self.layer}.{self.name}"


@attrs.frozen
class KVGroup:
    """Slots with one specification, one block size and one block table per request."""

    index: int
    spec: KVSpec
    block_size: int
    """Tokens per block."""
    slots: tuple[str, ...]
    """Slot j lies in lane j."""

    def slot_bytes(self) -> int:
        """Bytes that one block needs in one slot; the page may be larger."""
        return self.spec.page_bytes(self.block_size)

    def page_bytes(self) -> int:
        """Bytes that one block needs over all slots of the group."""
        return len(self.slots) * self.slot_bytes()
