"""Chained hashes that name the content of KV blocks, equal in every process.

The hash of a block covers its tokens and everything before them, so equal hashes mean equal keys
and values::

    root    = sha256("pegboard-kv-1" 0 | u32 block size | field(adapter) | field(salt))
    hash[0] = sha256(root        | ids of block 0 | media of block 0)
    hash[i] = sha256(hash[i - 1] | ids of block i | media of block i)

    ids     one u32 each, as many as a block has tokens
    media   per item that overlaps the block: u32 length and bytes of its digest, i64 offset of the
            item relative to the block's first token, i64 length of the item; else nothing
    field   0 for None, else 1, u32 length, UTF-8 bytes

All integers are little-endian. Every part has a fixed or a stated length, so no two inputs share an
encoding; the digest is never shortened. Salt and adapter stand in the root and so are in every hash
of the chain.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from hashlib import sha256

__all__ = ["ALGORITHM", "BlockHasher", "MediaSpan"]

ALGORITHM = "pegboard-kv-1/sha256"
"""Names the encoding and the digest; stores that outlive a process keep it beside their keys."""

MediaSpan = tuple[int, int, bytes]
"""``(offset, length, digest)`` of a media item in the prompt, in tokens."""

_LENGTH = struct.Struct("<I")
_SPAN = struct.Struct("<qq")


def _field(value: str | None) -> bytes:
    if value is None:
        return b"\0"
    data = value.encode()
    return b"\1" + _LENGTH.pack(len(data)) + data


def _media_bytes(media: Sequence[MediaSpan], start: int, stop: int) -> bytes:
    """Encoding of the items that overlap tokens `start` to `stop`; empty without any."""
    parts = []
    for offset, length, digest in media:
        if offset < stop and offset + length > start:
            parts += [_LENGTH.pack(len(digest)), digest, _SPAN.pack(offset - start, length)]
    return b"".join(parts)


class BlockHasher:
    """Hashes the blocks of sequences for one block size."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._pack = struct.Struct(f"<{block_size}I").pack

    def root(self, adapter: str | None = None, salt: str | None = None) -> bytes:
        """Where a chain starts: 32 bytes that depend on block size, adapter and salt."""
        head = b"pegboard-kv-1\0" + _LENGTH.pack(self.block_size)
        return sha256(head + _field(adapter) + _field(salt)).digest()

    def extend(
        self,
        hashes: list[bytes],
        blocks: int,
        root: bytes,
        ids: Callable[[int, int], Sequence[int]],
        media: Sequence[MediaSpan] = (),
    ) -> None:
        """Append to `hashes` until it has `blocks` entries, 32 bytes each.

        `ids(start, stop)` gives the token ids of a range; each must be from 0 to 2**32 - 1.
        """
        size, pack = self.block_size, self._pack
        parent = hashes[-1] if hashes else root
        for start in range(len(hashes) * size, blocks * size, size):
            data = parent + pack(*ids(start, start + size))
            if media:
                data += _media_bytes(media, start, start + size)
            parent = sha256(data).digest()
            hashes.append(parent)
