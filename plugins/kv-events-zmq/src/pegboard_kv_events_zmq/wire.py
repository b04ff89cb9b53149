"""The payload: msgpack in the schema that routers and indexers of the field read.

A batch is the array ``[timestamp, events, rank]``, an event a map: first ``type``, then the fields
of the classes below in their order, those with a default only if they have another value. This is
the schema of vLLM 0.33 (``vllm/distributed/kv_events.py``), its unused fields included: they are
not sent, but their number decides how msgspec writes the head of the map.

A hash is an unsigned integer, the last 64 bits of the digest read as big-endian, or the whole
digest as bytes. ``lora_id`` is always null: an adapter has a name only.
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


class WireEvent(msgspec.Struct, tag=True, omit_defaults=True, gc=False):
    """What is common to events: ``type`` is the name of the class."""


class WireStored(WireEvent, tag="BlockStored"):
    """`pegboard.api.events.BlockStored` as it is sent."""

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[Any] | None] | None = None
    """Per hash: the adapter, ``[digest in hexadecimal, offset]`` of media, the salt."""
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class WireRemoved(WireEvent, tag="BlockRemoved"):
    """`pegboard.api.events.BlockRemoved` as it is sent."""

    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class WireCleared(WireEvent, tag="AllBlocksCleared"):
    """`pegboard.api.events.AllBlocksCleared` as it is sent."""


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

    def _event(self, event: KVEvent) -> WireEvent:
        if isinstance(event, BlockStored):
            return self._stored(event)
        if isinstance(event, BlockRemoved):
            hashes = [self._hash(value) for value in event.block_hashes]
            return WireRemoved(hashes, event.medium, event.group)
        return WireCleared()

    def _stored(self, event: BlockStored) -> WireStored:
        parent = event.parent_hash
        return WireStored(
            block_hashes=[self._hash(value) for value in event.block_hashes],
            parent_block_hash=None if parent is None else self._hash(parent),
            token_ids=event.token_ids,
            block_size=event.block_size,
            lora_id=None,
            medium=event.medium,
            lora_name=event.adapter,
            extra_keys=[_extra(keys) for keys in event.extra_keys] or None,
            group_idx=event.group,
            kv_cache_spec_kind=KINDS.get(event.kind, "unknown"),
            kv_cache_spec_sliding_window=event.window,
        )


def _extra(keys: Sequence[ExtraKey] | None) -> list[Any] | None:
    if keys is None:
        return None
    return [key if isinstance(key, str) else [key[0].hex(), key[1]] for key in keys]
