"""GGUF metadata: typed key-value pairs, arrays decoded when asked for.

Layout of a pair: key (string), value type (u32), value. A string is a u64 length and UTF-8 bytes;
an array is an element type (u32), a count (u64) and the elements, which may be arrays again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, overload

import attrs

from pegboard.errors import CheckpointError
from pegboard_quant_gguf.binary import Cursor, RegularFile

__all__ = ["Metadata", "check_count", "read_metadata"]

KEY_LIMIT = 65535
"""Longest key in bytes, from the specification."""
STRING_LIMIT = 64 << 20
"""Longest string value in bytes."""
MAX_PAIRS = 1 << 16
"""Most key-value pairs in one file. Real files have fewer than a hundred."""
MAX_DEPTH = 4
"""Deepest nesting of arrays."""

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "B",
    10: "Q",
    11: "q",
    12: "d",
}
_SIZES = {kind: struct.calcsize("<" + code) for kind, code in _SCALARS.items()}
# Least bytes of one element; what a claimed count is checked against before anything is read.
_LEAST = {**_SIZES, _STRING: 8, _ARRAY: 12}
_SMALLEST_PAIR = 8 + 1 + 4 + 1

T = TypeVar("T", str, int, float, bool)


@attrs.frozen
class _ArrayRef:
    """Where an array lies in the file; its elements are not in memory."""

    start: int
    end: int
    kind: int
    count: int


class Metadata(Mapping[str, Any]):
    """The metadata of one file: strings, ints, floats, bools and tuples of them.

    Arrays are decoded at each access (`__getitem__`), so token lists cost no memory until somebody
    wants them; the file must still be open then.
    """

    def __init__(self, file: RegularFile, values: dict[str, Any]) -> None:
        self._file = file
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        return _decode_array(self._file, key, value) if isinstance(value, _ArrayRef) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def count(self, key: str) -> int | None:
        """Number of elements of the array at `key` without decoding it; None if absent or not an
        array."""
        value = self._values.get(key)
        return value.count if isinstance(value, _ArrayRef) else None

    @overload
    def typed(self, key: str, kind: type[T]) -> T | None: ...
    @overload
    def typed(self, key: str, kind: type[T], default: T) -> T: ...
    def typed(self, key: str, kind: type[T], default: T | None = None) -> T | None:
        """Value at `key`, or `default` if absent. Raises `CheckpointError` if it is not of type
        `kind`."""
        value = self._values.get(key)
        if value is None:
            return default
        if type(value) is not kind:
            found = "an array" if isinstance(value, _ArrayRef) else f"{value!r:.80}"
            raise CheckpointError(
                f"{self._file.path}: key {key!r} must be of type {kind.__name__}, found {found}"
            )
        return value

    def array(self, key: str, kind: type[T]) -> tuple[T, ...] | None:
        """Array at `key`, None if absent. Raises `CheckpointError` if it is not an array of
        `kind`."""
        ref = self._values.get(key)
        if ref is None:
            return None
        if not isinstance(ref, _ArrayRef) or (ref.count and _python_type(ref.kind) is not kind):
            raise CheckpointError(
                f"{self._file.path}: key {key!r} must be an array of {kind.__name__}"
            )
        return tuple(_decode_array(self._file, key, ref))


def check_count(cursor: Cursor, count: int, what: str, most: int, least_bytes: int) -> None:
    """Raise `CheckpointError` if the file claims more of `what` than are allowed, or than fit into
    what follows, at `least_bytes` bytes for each."""
    path = cursor.file.path
    if count > most:
        raise CheckpointError(f"{path}: claims {count} {what}; at most {most} are allowed")
    if count * least_bytes > cursor.left:
        raise CheckpointError(
            f"{path}: claims {count} {what}, which take at least {count * least_bytes} bytes, but "
            f"only {cursor.left} bytes follow: the file is cut short or damaged"
        )


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Read `count` pairs at the cursor. Raises `CheckpointError` naming the key for every fault."""
    path = cursor.file.path
    check_count(cursor, count, "metadata pairs", MAX_PAIRS, _SMALLEST_PAIR)
    values: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"metadata key number {index}", KEY_LIMIT)
        if not key:
            raise CheckpointError(f"{path}: metadata key number {index} is empty")
        if key in values:
            raise CheckpointError(f"{path}: metadata key {key!r} occurs twice")
        kind = cursor.u32(f"the type of key {key!r}")
        values[key] = _read_value(cursor, key, kind)
    return Metadata(cursor.file, values)


def _read_value(cursor: Cursor, key: str, kind: int) -> Any:
    what = f"the value of key {key!r}"
    if kind == _STRING:
        return cursor.string(what, STRING_LIMIT)
    if kind == _ARRAY:
        return _skip_array(cursor, key, 1)
    if kind not in _SCALARS:
        raise CheckpointError(
            f"{cursor.file.path}: key {key!r} has the unknown value type {kind} (0 to 12 are "
            "allowed)"
        )
    return _unpack(cursor.file, key, kind, cursor.take(_SIZES[kind], what), 1)[0]


def _unpack(
    file: RegularFile, key: str, kind: int, data: bytes | bytearray, count: int
) -> tuple[Any, ...]:
    values = struct.unpack(f"<{count}{_SCALARS[kind]}", data)
    if kind != _BOOL:
        return values
    if max(values, default=0) > 1:
        raise CheckpointError(
            f"{file.path}: key {key!r} holds the bool {max(values)}; only 0 and 1 are allowed"
        )
    return tuple(map(bool, values))


def _skip_array(cursor: Cursor, key: str, depth: int) -> _ArrayRef:
    """Check an array's extent and pass over it."""
    path, what = cursor.file.path, f"the array at key {key!r}"
    if depth > MAX_DEPTH:
        raise CheckpointError(f"{path}: {what} is nested more than {MAX_DEPTH} deep")
    kind, count = cursor.u32(what), cursor.u64(what)
    if kind not in _LEAST:
        raise CheckpointError(
            f"{path}: {what} has the unknown element type {kind} (0 to 12 are allowed)"
        )
    if count * _LEAST[kind] > cursor.left:
        raise CheckpointError(f"{path}: {what} claims {count} elements; the file cannot hold them")
    start = cursor.offset
    if kind == _STRING:
        cursor.skip_strings(count, what)
    elif kind == _ARRAY:
        for _ in range(count):
            _skip_array(cursor, key, depth + 1)
    else:
        cursor.skip(count * _SIZES[kind], what)
    return _ArrayRef(start, cursor.offset, kind, count)


def _decode_array(file: RegularFile, key: str, ref: _ArrayRef) -> tuple[Any, ...]:
    if ref.kind == _ARRAY:
        return _decode_nested(file, key, ref)
    data = file.read(ref.start, ref.end - ref.start, f"the array at key {key!r}")
    if ref.kind == _STRING:
        return _decode_strings(file, key, data, ref.count)
    return _unpack(file, key, ref.kind, data, ref.count)


def _decode_nested(file: RegularFile, key: str, ref: _ArrayRef) -> tuple[Any, ...]:
    cursor = Cursor(file, ref.start)
    parts = [_skip_array(cursor, key, 1) for _ in range(ref.count)]
    return tuple(_decode_array(file, key, part) for part in parts)


def _decode_strings(
    file: RegularFile, key: str, data: bytes | bytearray, count: int
) -> tuple[str, ...]:
    unpack, pos = struct.Struct("<Q").unpack_from, 0
    out: list[str] = []
    try:
        for _ in range(count):
            end = pos + 8 + unpack(data, pos)[0]
            out.append(data[pos + 8 : end].decode("utf-8"))
            pos = end
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"{file.path}: element {len(out)} of key {key!r} is not valid UTF-8 ({error.reason})"
        ) from error
    return tuple(out)


def _python_type(kind: int) -> type:
    if kind == _STRING:
        return str
    if kind == _BOOL:
        return bool
    return float if _SCALARS.get(kind) in ("f", "d") else int
