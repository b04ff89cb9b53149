"""Payloads equal the field's schema byte for byte."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.api.events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch
from pegboard_kv_events_zmq.wire import KINDS, BatchEncoder, int_hash

# The schema as readers declare it: an array for the batch, tagged maps for the events, and keys
# with defaults left out while they have them.


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, omit_defaults=True, tag=True):
    pass


class Stored(Event, tag="BlockStored"):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None
    lookahead_token_ids: list[list[int]] | None = None


class Removed(Event, tag="BlockRemoved"):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None
    ownership: str | None = None


class Cleared(Event, tag="AllBlocksCleared"):
    pass


def as_read(batch: KVEventBatch, rank: int, ints: bool) -> Batch:
    """The batch in the readers' own classes."""

    def name(value: bytes) -> int | bytes:
        return int.from_bytes(value, "big") & ((1 << 64) - 1) if ints else value

    def event(given: Any) -> Event:
        if isinstance(given, AllBlocksCleared):
            return Cleared()
        hashes = [name(value) for value in given.block_hashes]
        if isinstance(given, BlockRemoved):
            return Removed(hashes, given.medium, given.group)
        extra = [
            keys and tuple(k if isinstance(k, str) else (k[0].hex(), k[1]) for k in keys)
            for keys in given.extra_keys
        ]
        return Stored(
            block_hashes=hashes,
            parent_block_hash=given.parent_hash and name(given.parent_hash),
            token_ids=given.token_ids,
            block_size=given.block_size,
            lora_id=None,
            medium=given.medium,
            lora_name=given.adapter,
            extra_keys=extra or None,
            group_idx=given.group,
            kv_cache_spec_kind=KINDS.get(given.kind, "unknown"),
            kv_cache_spec_sliding_window=given.window,
        )

    return Batch(batch.timestamp, [event(item) for item in batch.events], rank)


hashes = st.binary(min_size=32, max_size=32)
extras = st.none() | st.lists(
    st.text(max_size=5) | st.tuples(st.binary(max_size=4), st.integers(-50, 50)), min_size=1
).map(tuple)
stored = st.builds(
    BlockStored,
    block_hashes=st.lists(hashes),
    parent_hash=st.none() | hashes,
    token_ids=st.lists(st.integers(0, 2**32 - 1)),
    block_size=st.integers(1, 1 << 20),
    group=st.integers(0, 9),
    kind=st.sampled_from([*KINDS, "of another engine"]),
    window=st.none() | st.integers(1, 1 << 20),
    adapter=st.none() | st.text(max_size=5),
    extra_keys=st.lists(extras),
)
removed = st.builds(BlockRemoved, block_hashes=st.lists(hashes), group=st.integers(0, 9))
batches = st.builds(
    KVEventBatch,
    timestamp=st.floats(0, 1e10),
    events=st.lists(stored | removed | st.builds(AllBlocksCleared), min_size=1),
)


@settings(max_examples=40, deadline=None)
@given(batch=batches, rank=st.integers(0, 3), ints=st.booleans())
def test_a_payload_is_what_a_reader_of_the_schema_would_write(
    batch: KVEventBatch, rank: int, ints: bool
) -> None:
    payload = BatchEncoder(rank, ints).encode(batch)
    assert payload == msgspec.msgpack.encode(as_read(batch, rank, ints))


def text(value: str) -> bytes:
    return bytes([0xA0 + len(value)]) + value.encode()


ONE, TWO = bytes(range(32)), bytes(range(32, 64))
# A batch of three items. The field's BlockStored has 16 keys, so its map has the long form of head.
HEAD = b"\x93\xcb" + struct.pack(">d", 1.5)


def test_a_stored_block_is_these_bytes() -> None:
    event = BlockStored(
        [TWO], ONE, [5, 300], 2, 1, "sliding", 512, "poet", [("poet", (b"\xab", -1), "tenant")]
    )
    golden = HEAD + b"\x91\xde\x00\x0c" + text("type") + text("BlockStored")
    golden += text("block_hashes") + b"\x91\xcf" + bytes(range(56, 64))
    golden += text("parent_block_hash") + b"\xcf" + bytes(range(24, 32))
    golden += text("token_ids") + b"\x92\x05\xcd\x01\x2c" + text("block_size") + b"\x02"
    golden += text("lora_id") + b"\xc0" + text("medium") + text("GPU")
    golden += text("lora_name") + text("poet")
    golden += text("extra_keys") + b"\x91\x93" + text("poet")
    golden += b"\x92" + text("ab") + b"\xff" + text("tenant")
    golden += text("group_idx") + b"\x01"
    golden += text("kv_cache_spec_kind") + text("sliding_window")
    golden += text("kv_cache_spec_sliding_window") + b"\xcd\x02\x00" + b"\x00"
    assert BatchEncoder().encode(KVEventBatch(1.5, [event])) == golden


def test_a_plain_stored_block_leaves_the_window_out() -> None:
    event = BlockStored([TWO], None, [5], 1, 0, "full", extra_keys=[None])
    golden = HEAD + b"\x91\xde\x00\x0b" + text("type") + text("BlockStored")
    golden += text("block_hashes") + b"\x91\xc4\x20" + TWO + text("parent_block_hash") + b"\xc0"
    golden += text("token_ids") + b"\x91\x05" + text("block_size") + b"\x01"
    golden += text("lora_id") + b"\xc0" + text("medium") + text("GPU")
    golden += text("lora_name") + b"\xc0" + text("extra_keys") + b"\x91\xc0"
    golden += text("group_idx") + b"\x00"
    golden += text("kv_cache_spec_kind") + text("full_attention") + b"\x03"
    assert BatchEncoder(rank=3, int_hashes=False).encode(KVEventBatch(1.5, [event])) == golden


def test_removed_and_cleared_are_these_bytes() -> None:
    batch = KVEventBatch(1.5, [BlockRemoved([ONE], 2), AllBlocksCleared()])
    golden = HEAD + b"\x92\x84" + text("type") + text("BlockRemoved")
    golden += text("block_hashes") + b"\x91\xcf" + bytes(range(24, 32))
    golden += text("medium") + text("GPU") + text("group_idx") + b"\x02"
    golden += b"\x81" + text("type") + text("AllBlocksCleared") + b"\x00"
    assert BatchEncoder().encode(batch) == golden


@pytest.mark.parametrize(
    ("digest", "number"), [(b"\xff" * 32, 2**64 - 1), (b"\1" * 24 + b"\0" * 8, 0)]
)
def test_an_integer_hash_is_the_last_64_bits(digest: bytes, number: int) -> None:
    assert int_hash(digest) == number
