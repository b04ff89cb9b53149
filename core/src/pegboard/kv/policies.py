"""How each kind of KV group uses blocks.

A kind is a class; the manager asks it and knows no kind itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pegboard.api.kv import KVGroup
from pegboard.errors import UnsupportedError
from pegboard.kv.blocks import Block, BlockPool

__all__ = ["FullAttentionPolicy", "GroupPolicy", "make_policy"]


class GroupPolicy(Protocol):
    """The rules of one group.

    Counts and indices are in blocks of the group, unless tokens are said.
    """

    index: int
    block_size: int

    def table_length(self, tokens: int) -> int:
        """Entries that a block table needs for `tokens` tokens."""
        ...

    def find(self, pool: BlockPool, hashes: Sequence[bytes], limit: int) -> list[Block]:
        """The longest usable cached beginning, at most `limit` entries; may hold the null block."""
        ...

    def cut(self, start: int, count: int) -> int:
        """Shorten a chunk so that it ends where the group can resume; at least 1 token."""
        ...


class FullAttentionPolicy:
    """Block i holds tokens ``i * block_size`` and on, and any beginning can be resumed."""

    def __init__(self, group: KVGroup) -> None:
        self.index = group.index
        self.block_size = group.block_size

    def table_length(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def find(self, pool: BlockPool, hashes: Sequence[bytes], limit: int) -> list[Block]:
        found: list[Block] = []
        for number in range(min(limit, len(hashes))):
            block = pool.find((self.index, hashes[number]))
            if block is None:
                break
            found.append(block)
        return found

    def cut(self, start: int, count: int) -> int:
        return count


_KINDS: dict[str, type[FullAttentionPolicy]] = {"full": FullAttentionPolicy}


def make_policy(group: KVGroup) -> GroupPolicy:
    """The policy for a group's kind; `UnsupportedError` names a kind that is not built."""
    kind = group.spec.kind
    if kind not in _KINDS:
        raise UnsupportedError(
            f"KV group {group.index} has kind={kind!r}; built are: " + ", ".join(_KINDS)
        )
    return _KINDS[kind](group)
