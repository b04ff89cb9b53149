"""Integrity: every reference on a block is held by somebody known."""

from __future__ import annotations

from collections.abc import Iterable

from pegboard.kv.blocks import Block, BlockPool
from pegboard.kv.values import Fork, KVRequest

__all__ = ["check_holders"]


def check_holders(
    pool: BlockPool, requests: Iterable[KVRequest], forks: Iterable[Fork], loose: Iterable[Block]
) -> None:
    """Verify the pool and its counts; `AssertionError` names the block that is off."""
    pool.check()
    held = [0] * len(pool.blocks)
    held[0] = 1
    holders: list[Iterable[Block]] = [loose]
    for request in requests:
        holders += [*request.tables, request.snapshots.values()]
    for fork in forks:
        holders += [*fork.blocks, [source.block for source in fork.sources]]
    for blocks in holders:
        for block in blocks:
            held[block.id] += block is not pool.null
    for block in pool.blocks:
        assert block.refs == held[block.id], f"{block} has {held[block.id]} holders"
