"""Bounded reading of a little-endian file: every length is checked against the file before it is
believed."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

from pegboard.errors import CheckpointError

__all__ = ["HEADER_LIMIT", "Cursor", "RegularFile"]

HEADER_LIMIT = 256 << 20
"""Longest header (metadata and tensor list) that is read, in bytes. Real ones stay below 20 MiB."""

_CHUNK = 1 << 20
_READ_LIMIT = 1 << 30
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class RegularFile:
    """An open file of fixed size, read by offset.

    Reads copy out of the page cache with ``pread``; nothing is mapped, so reading leaves no
    resident pages behind. Safe to use from several threads.
    """

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises `CheckpointError` if it is missing, unreadable, empty or not a
        regular file."""
        self.path = path
        self._fd = -1
        try:
            # The check comes first: opening a FIFO would wait for a writer.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise CheckpointError(f"{path}: is not a regular file")
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
            self.size = os.fstat(self._fd).st_size
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
        if self.size == 0:
            self.close()
            raise CheckpointError(f"{path}: the file is empty")

    def read_into(self, offset: int, buffer: memoryview, what: str) -> None:
        """Fill the writable byte `buffer` from `offset`. Raises `CheckpointError` naming `what`
        if bytes are missing."""
        done = 0
        while done < len(buffer):
            part = buffer[done : done + _READ_LIMIT]
            got = self._read_some(offset + done, part, what)
            if got == 0:
                raise CheckpointError(
                    f"{self.path}: the file ends inside {what}: {len(buffer)} bytes are needed at "
                    f"offset {offset}, "
                    f"the file has {self.size}"
                )
            done += got

    def _read_some(self, offset: int, part: memoryview, what: str) -> int:
        if self._fd < 0:
            raise CheckpointError(f"{self.path}: {what} was asked for after the file was closed")
        try:
            return os.preadv(self._fd, [part], offset)
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot read {what}: {error.strerror}") from error

    def read(self, offset: int, length: int, what: str) -> bytearray:
        """Return `length` bytes from `offset`."""
        if offset + length > self.size:
            raise CheckpointError(
                f"{self.path}: the file ends inside {what}: {length} bytes are needed at offset "
                f"{offset}, "
                f"the file has {self.size}"
            )
        data = bytearray(length)
        self.read_into(offset, memoryview(data), what)
        return data

    def close(self) -> None:
        """Close the file; later reads fail. May be called twice."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class Cursor:
    """Walks forward through the header of a file with one buffer of at most a mebibyte (or one
    string)."""

    def __init__(self, file: RegularFile, offset: int = 0) -> None:
        self.file = file
        self._base = offset
        self._buffer: bytes | bytearray = b""
        self._pos = 0

    @property
    def offset(self) -> int:
        """File offset of the next byte."""
        return self._base + self._pos

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.file.size - self.offset

    def take(self, length: int, what: str) -> bytes:
        """Return the next `length` bytes."""
        self._ensure(length, what)
        start = self._pos
        self._pos += length
        return bytes(self._buffer[start : self._pos])

    def skip(self, length: int, what: str) -> None:
        """Pass over `length` bytes without reading them."""
        self._check(length, what)
        self._pos += length
        if self._pos > len(self._buffer):
            self._base, self._pos, self._buffer = self.offset, 0, b""

    def u32(self, what: str) -> int:
        """Next unsigned 32-bit integer."""
        return int(_U32.unpack(self.take(4, what))[0])

    def u64(self, what: str) -> int:
        """Next unsigned 64-bit integer."""
        return int(_U64.unpack(self.take(8, what))[0])

    def string(self, what: str, limit: int) -> str:
        """Next string (64-bit length, UTF-8 bytes), at most `limit` bytes long."""
        length = self.u64(f"the length of {what}")
        if length > limit:
            raise CheckpointError(
                f"{self.file.path}: {what} claims {length} bytes; at most {limit} are allowed"
            )
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.file.path}: {what} is not valid UTF-8 ({error.reason})"
            ) from error

    def skip_strings(self, count: int, what: str) -> None:
        """Pass over `count` strings. Linear in `count`, which the caller has checked against the
        file size."""
        unpack = _U64.unpack_from
        while count:
            self._ensure(8, what)
            buffer, pos = self._buffer, self._pos
            last = len(buffer) - 8
            while count and pos <= last:
                pos += 8 + unpack(buffer, pos)[0]
                count -= 1
            self.skip(pos - self._pos, what)

    def _ensure(self, length: int, what: str) -> None:
        if self._pos + length <= len(self._buffer):
            return
        self._check(length, what)
        offset = self.offset
        size = min(max(length, _CHUNK), self.file.size - offset)
        self._buffer = self.file.read(offset, size, what)
        self._base, self._pos = offset, 0

    def _check(self, length: int, what: str) -> None:
        if length > self.left:
            raise CheckpointError(
                f"{self.file.path}: the file ends inside {what}: {length} bytes are needed at "
                f"offset {self.offset}, "
                f"the file has {self.file.size}"
            )
        if self.offset + length > HEADER_LIMIT:
            raise CheckpointError(
                f"{self.file.path}: {what} lies beyond the first {HEADER_LIMIT} bytes of the file"
            )
