"""One file, one block: header, key, padding, content.

::

    0    8s   magic                        all numbers little-endian
    8    H    version
    10   H    length of the key, bytes
    12   I    KV group
    16   32s  digest of the engine's identity
    48   Q    length of the content, bytes
    56   I    CRC-32 of the content (0 without checksum)
    60   I    kind of checksum: 0 none, 1 CRC-32
    64   64s  key, padded with zeros
    128  I    CRC-32 of the bytes before
    132       zeros up to 192, where the content begins

A file is written under a temporary name and renamed when it is complete, so a block's name is
never seen on half a block, whoever dies when. `read_block` believes nothing that it has not
compared.
"""

from __future__ import annotations

import os
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import attrs

from pegboard.errors import PegboardError

__all__ = ["HEADER_BYTES", "LONGEST_KEY", "BlockFileError", "Label", "read_block", "write_block"]

MAGIC = b"PEGBKV\r\n"
VERSION = 1
HEADER_BYTES = 192
LONGEST_KEY = 64
NO_CHECKSUM, CRC32 = 0, 1

_FIELDS = struct.Struct("<8sHHI32sQII64s")
_CHECK = struct.Struct("<I")


class BlockFileError(PegboardError):
    """The file is not what its name says: damaged, cut short, of another engine or of no one."""


@attrs.frozen
class Label:
    """What a file must be to be loaded."""

    identity: bytes
    """32 bytes."""
    group: int
    key: bytes
    nbytes: int
    """Of the content."""

    def header(self, content: memoryview, checksum: bool) -> bytes:
        """The first `HEADER_BYTES` of the file. Raises `ValueError` for too long a key."""
        if len(self.key) > LONGEST_KEY:
            raise ValueError(f"a key of {len(self.key)} bytes: at most {LONGEST_KEY} are allowed")
        kind, check = (CRC32, zlib.crc32(content)) if checksum else (NO_CHECKSUM, 0)
        length, padded = len(self.key), self.key.ljust(LONGEST_KEY, b"\0")
        fields = _FIELDS.pack(
            MAGIC, VERSION, length, self.group, self.identity, self.nbytes, check, kind, padded
        )
        return (fields + _CHECK.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")

    def check(self, header: bytes) -> tuple[int, int]:
        """Compare a file's header; kind and value of its checksum.

        Raises `BlockFileError` naming the first difference.
        """
        fields = header[: _FIELDS.size]
        magic, version, length, group, identity, nbytes, check, kind, key = _FIELDS.unpack(fields)
        _demand("magic", magic, MAGIC)
        _demand("version", version, VERSION)
        _demand("header checksum", _CHECK.unpack_from(header, len(fields))[0], zlib.crc32(fields))
        _demand("identity", identity, self.identity)
        _demand("group", group, self.group)
        _demand("key", key[:length], self.key)
        _demand("length", nbytes, self.nbytes)
        return kind, check


def _demand(what: str, found: object, wanted: object) -> None:
    if found != wanted:
        raise BlockFileError(f"{what} is {found!r}, not {wanted!r}")


def write_block(
    path: Path, label: Label, content: memoryview, *, mark: str, checksum: bool, fsync: bool
) -> None:
    """Write a file in one piece; `mark` makes the temporary name unique in all processes.

    Raises `OSError`; then nothing is left behind.
    """
    header = label.header(content, checksum)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{mark}")
    try:
        with temporary.open("xb", buffering=0) as file:
            for part in (memoryview(header), content):
                _write_all(file.fileno(), part)
            if fsync:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if fsync:
        _flush_folder(path.parent)


def _write_all(file: int, content: memoryview) -> None:
    done = 0
    while done < len(content):
        done += os.write(file, content[done:])


def _flush_folder(path: Path) -> None:
    """A rename is safe once the folder is."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_block(path: Path, label: Label, content: memoryview, *, checksum: bool) -> None:
    """Fill `content`, of ``label.nbytes`` bytes.

    Raises `BlockFileError` if the file is not that block, or `OSError` (`FileNotFoundError` if it
    is gone). With `checksum` a file without one is refused.
    """
    with path.open("rb", buffering=0) as file:
        _demand("size of the file", os.fstat(file.fileno()).st_size, HEADER_BYTES + label.nbytes)
        header = bytearray(HEADER_BYTES)
        _read_all(file.fileno(), memoryview(header))
        kind, check = label.check(bytes(header))
        _read_all(file.fileno(), content)
    if checksum and kind == NO_CHECKSUM:
        raise BlockFileError("the file has no checksum")
    if kind not in (NO_CHECKSUM, CRC32):
        raise BlockFileError(f"kind of checksum is {kind}, not {NO_CHECKSUM} or {CRC32}")
    if checksum:
        _demand("checksum", zlib.crc32(content), check)


def _read_all(file: int, target: memoryview) -> None:
    done = 0
    while done < len(target):
        count = os.readv(file, [target[done:]])
        if count == 0:
            raise BlockFileError(f"the file ends {len(target) - done} bytes early")
        done += count
