"""The books of the KV cache: blocks, hashes, groups, the manager. No tensors."""

from __future__ import annotations

from pegboard.kv.blocks import Block, BlockPool, PoolStats
from pegboard.kv.groups import form_groups, size_cache
from pegboard.kv.hashing import ALGORITHM, BlockHasher
from pegboard.kv.manager import KVManager
from pegboard.kv.values import Allocation, Fork, Hit, KVRequest

__all__ = [
    "ALGORITHM",
    "Allocation",
    "Block",
    "BlockHasher",
    "BlockPool",
    "Fork",
    "Hit",
    "KVManager",
    "KVRequest",
    "PoolStats",
    "form_groups",
    "size_cache",
]
