"""What one group lacks the others cannot use: the longest beginning that all groups can resume."""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.kv.blocks import Block
from pegboard.kv.policy import Finder, GroupPolicy, Part
from pegboard.kv.values import Source

__all__ = ["common_beginning", "parts_to_lists"]


def common_beginning(
    policies: Sequence[GroupPolicy], pool: Finder, hashes: Sequence[bytes], limit: int
) -> int:
    """The longest beginning of at most `limit` hash units that every group can resume, in units.

    Each group in turn shortens the beginning to the longest one that it can resume, until a whole
    round changes nothing. No common one is passed over: a group skips only what it cannot resume
    itself. The rounds end, for each but the last is shorter than the one before.
    """
    units = limit
    while units > 0:
        before = units
        for policy in policies:
            units = policy.longest(pool, hashes, units)
        if units == before:
            break
    return units


def parts_to_lists(parts: Sequence[Part]) -> tuple[list[list[Block]], list[Source]]:
    """Block tables per group, and the sources of those that have one."""
    return [blocks for blocks, _ in parts], [source for _, source in parts if source is not None]
