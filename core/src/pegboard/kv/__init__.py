"""The books of the KV cache: blocks, hashes, groups, the manager. No tensors."""

from __future__ import annotations

from pegboard.kv.blocks import Block, BlockPool, PoolStats
from pegboard.kv.groups import block_bytes, form_groups
from pegboard.kv.hashing import ALGORITHM, BlockHasher
from pegboard.kv.manager import KVManager
from pegboard.kv.sizing import size_cache
from pegboard.kv.values import Allocation, Beginning, Fork, Hit, KVRequest

__all__ = [
    "ALGORITHM",
    "Allocation",
    "Beginning",
    "Block",
    "BlockHasher",
    "BlockPool",
    "Fork",
    "Hit",
    "KVManager",
    "KVRequest",
    "PoolStats",
    "block_bytes",
    "form_groups",
    "size_cache",
]
