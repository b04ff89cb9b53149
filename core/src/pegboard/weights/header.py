"""The header of a safetensors file, checked before a single tensor is trusted.

Layout of a file: eight bytes ``n`` (little endian), ``n`` bytes of JSON, then the tensors' bytes.
The JSON maps each name to ``{"dtype", "shape", "data_offsets": [begin, end]}`` with offsets
relative to the end of the header; the ranges cover the data exactly, without holes or overlaps (the
format's own rule).
"""

from __future__ import annotations

import json
import os
import reprlib
import stat
from collections.abc import Mapping
from math import prod
from typing import Any

import attrs

from pegboard.errors import CheckpointError

__all__ = ["MAX_HEADER_BYTES", "STORED_DTYPES", "HeaderEntry", "ShardHeader", "read_header"]

MAX_HEADER_BYTES = 100_000_000
"""Longest header that is read; the format's reference implementation has the same limit."""

_MAX_DIMENSIONS = 16

STORED_DTYPES: Mapping[str, tuple[str, int]] = {
    "BF16": ("bfloat16", 2),
    "BOOL": ("bool", 1),
    "C64": ("complex64", 8),
    "F16": ("float16", 2),
    "F32": ("float32", 4),
    "F64": ("float64", 8),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "I16": ("int16", 2),
    "I32": ("int32", 4),
    "I64": ("int64", 8),
    "I8": ("int8", 1),
    "U16": ("uint16", 2),
    "U32": ("uint32", 4),
    "U64": ("uint64", 8),
    "U8": ("uint8", 1),
}
"""Stored types by the file's name: torch name and bytes per element."""


@attrs.frozen
class HeaderEntry:
    """One tensor as its header describes it."""

    name: str
    stored_type: str
    shape: tuple[int, ...]
    offset: int
    """First byte, counted from the start of the file."""
    nbytes: int


@attrs.frozen
class ShardHeader:
    """One checked file."""

    path: str
    size: int
    """Bytes of the file when it was checked."""
    entries: Mapping[str, HeaderEntry]


def read_header(path: str) -> ShardHeader:
    """Read and check the header of the safetensors file `path`.

    Memory is bounded by the smaller of the file's size and `MAX_HEADER_BYTES`. Raises
    `CheckpointError` naming the file and, where one is to blame, the tensor.
    """
    size, header = _header_bytes(path)
    data_start = 8 + len(header)
    items = _parse(path, header)
    items.pop("__metadata__", None)
    entries = {name: _entry(path, name, item, data_start) for name, item in items.items()}
    _check_ranges(path, entries, data_start, size)
    return ShardHeader(path=path, size=size, entries=entries)


def _header_bytes(path: str) -> tuple[int, bytes]:
    """Size of the file, and the bytes of its JSON."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(f"{path}: not a regular file")
        with open(path, "rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            _check_length(path, len(first), length, status.st_size)
            header = file.read(length)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(header) < length:
        raise CheckpointError(f"{path}: the file ends inside its header")
    return status.st_size, header


def _check_length(path: str, got: int, length: int, size: int) -> None:
    if got < 8:
        raise CheckpointError(f"{path}: {size} bytes is too short for a safetensors file")
    if length == 0:
        raise CheckpointError(f"{path}: header length is 0; a safetensors header is never empty")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"{path}: header length is {length}, allowed are at most {MAX_HEADER_BYTES} bytes; "
            "the file is damaged or not safetensors"
        )
    if length > size - 8:
        raise CheckpointError(
            f"{path}: header length is {length} but only {size - 8} bytes follow it"
        )


def _parse(path: str, header: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path}: key {twice!r} occurs twice in the header")
        return found

    try:
        parsed = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not valid JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise CheckpointError(f"{path}: the header is not a JSON object")
    return parsed


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _counts(value: object, longest: int) -> tuple[int, ...] | None:
    """`value` as a tuple of counts, or None if it is anything else."""
    if not isinstance(value, list) or len(value) > longest or not all(map(_is_count, value)):
        return None
    return tuple(value)


def _entry(path: str, name: str, item: object, data_start: int) -> HeaderEntry:
    where = f"{path}: tensor {name!r}"
    if not isinstance(item, dict):
        raise CheckpointError(f"{where}: its description is not a JSON object")
    dtype = item.get("dtype")
    if not isinstance(dtype, str) or dtype not in STORED_DTYPES:
        raise CheckpointError(
            f"{where}: dtype {reprlib.repr(dtype)} is unknown; known are "
            f"{', '.join(sorted(STORED_DTYPES))}"
        )
    shape = _counts(item.get("shape"), _MAX_DIMENSIONS)
    if shape is None:
        raise CheckpointError(
            f"{where}: shape {reprlib.repr(item.get('shape'))} is not a list of sizes"
        )
    offsets = _counts(item.get("data_offsets"), 2)
    if offsets is None or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(
            f"{where}: data_offsets {reprlib.repr(item.get('data_offsets'))} is not a pair "
            f"[begin, end]"
        )
    wanted = prod(shape) * STORED_DTYPES[dtype][1]
    if wanted != offsets[1] - offsets[0]:
        raise CheckpointError(
            f"{where}: shape {list(shape)} of {dtype} takes {wanted} bytes but data_offsets "
            f"{list(offsets)} span {offsets[1] - offsets[0]}"
        )
    return HeaderEntry(name, dtype, shape, data_start + offsets[0], wanted)


def _check_ranges(path: str, entries: Mapping[str, HeaderEntry], start: int, size: int) -> None:
    """Check that the tensors cover the bytes from `start` to `size` exactly."""
    at, previous = start, "the header"
    for entry in sorted(entries.values(), key=lambda e: (e.offset, e.nbytes)):
        if entry.offset < at:
            raise CheckpointError(f"{path}: tensor {entry.name!r} overlaps {previous}")
        if entry.offset + entry.nbytes > size:
            raise CheckpointError(
                f"{path}: tensor {entry.name!r} ends at byte {entry.offset + entry.nbytes} but the "
                f"file has {size} bytes; it is cut short"
            )
        if entry.offset > at:
            raise CheckpointError(
                f"{path}: {entry.offset - at} bytes between {previous} and tensor {entry.name!r} "
                "belong to no tensor"
            )
        at, previous = entry.offset + entry.nbytes, f"tensor {entry.name!r}"
    if at < size:
        raise CheckpointError(f"{path}: {size - at} bytes after {previous} belong to no tensor")
