"""The payload: msgpack in the schema that routers and indexers of the field read.

A batch is the array ``[timestamp, events, rank]``. An event is a map whose first key, ``type``, is
its name; the others stand in the order below, and those marked ? only if they have a value::

    BlockStored       block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium,
                      lora_name, extra_keys?, group_idx?, kv_cache_spec_kind?,
                      kv_cache_spec_sliding_window?
    BlockRemoved      block_hashes, medium, group_idx?
    AllBlocksCleared

This is the schema of vLLM 0.33 (``vllm/distributed/kv_events.py``). Its further optional keys have
no counterpart here and are left out, as they are there when unset. ``lora_id`` is always null: an
adapter has a name only. A hash is an unsigned integer, the last 64 bits of the digest read as
big-endian, or the whole digest as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from pegboard.api.events import (
    BlockRemoved,
    BlockStored,
    ExtraKey,
    KVEvent,
    KVEventBatch,
)

__all__ = ["BatchEncoder", "int_hash"]

KINDS = MappingProxyType(
    {
        "chunked": "chunked_local_attention",
        "cross": "cross_attention",
        "encoder-only": "encoder_only_attention",
        "full": "full_attention",
        "latent": "mla_attention",
        "recurrent": "mamba",
        "sliding": "sliding_window",
    }
)
"""The field's names of kinds of KV groups; others are ``unknown``."""


def int_hash(digest: bytes) -> int:
    """The last 64 bits of a digest, as a big-endian unsigned integer."""
    return int.from_bytes(digest[-8:], "big")


class BatchEncoder:
    """Encodes batches of one engine."""

    def __init__(self, rank: int = 0, int_hashes: bool = True) -> None:
        self._rank = rank
        self._hash: Callable[[bytes], int | bytes] = int_hash if int_hashes else bytes
        self._encode = msgspec.msgpack.Encoder().encode

    def encode(self, batch: KVEventBatch) -> bytes:
        """The payload of a batch."""
        events = [self._event(event) for event in batch.events]
        return self._encode((batch.timestamp, events, self._rank))

    def _event(self, event: KVEvent) -> dict[str, Any]:
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, BlockRemoved):
            return {
                "type": "BlockRemoved",
                "block_hashes": [self._hash(value) for value in event.block_hashes],
                "medium": event.medium,
                "group_idx": event.group,
            }
        return {"type": "AllBlocksCleared"}

    def _stored(self, event: BlockStored) -> dict[str, Any]:
        parent = event.parent_hash
        fields: dict[str, Any] = {
            "type": "BlockStored",
            "block_hashes": [self._hash(value) for value in event.block_hashes],
            "parent_block_hash": None if parent is None else self._hash(parent),
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": None,
            "medium": event.medium,
            "lora_name": event.adapter,
        }
        if event.extra_keys:
            fields["extra_keys"] = [_extra(keys) for keys in event.extra_keys]
        fields["group_idx"] = event.group
        fields["kv_cache_spec_kind"] = KINDS.get(event.kind, "unknown")
        if event.window is not None:
            fields["kv_cache_spec_sliding_window"] = event.window
        return fields


def _extra(keys: Sequence[ExtraKey] | None) -> list[Any] | None:
    """Keys of one hash; a media item as ``[digest in hexadecimal, offset]``."""
    if keys is None:
        return None
    return [key if isinstance(key, str) else [key[0].hex(), key[1]] for key in keys]
