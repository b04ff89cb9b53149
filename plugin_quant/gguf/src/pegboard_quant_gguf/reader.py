"""Own reader of GGUF files, versions 2 and 3. Needs neither torch (until a tensor is read) nor the
`gguf` package.

Layout of a file, all integers little-endian::

    magic "GGUF" | version u32 | tensor count u64 | pair count u64
    metadata pairs                                      see `metadata`
    tensor infos: name, n_dims u32, dims u64[n_dims] (innermost first), type u32, offset u64
    padding to `general.alignment` (32 if absent)
    tensor data, each tensor at its offset from here, each offset a multiple of the alignment

Everything a file says about itself is checked before it is believed; a fault is a `CheckpointError`
that names the file and the key or tensor, found in time and memory that the file's own size bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from pegboard.errors import CheckpointError
from pegboard_quant_gguf.binary import Cursor, RegularFile
from pegboard_quant_gguf.metadata import Metadata, check_count, read_metadata
from pegboard_quant_gguf.types import REMOVED_TYPES, TYPES, GgufType

if TYPE_CHECKING:
    import torch

__all__ = ["MAGIC", "GgufFile", "GgufTensor", "read_gguf"]

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20
MAX_DIMS = 4
MAX_TENSORS = 1 << 18
NAME_LIMIT = 1024
"""Longest tensor name in bytes."""

_OLD_MAGICS = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT", b"algg": "GGLA"}
_SMALLEST_INFO = 8 + 4 + 8 + 4 + 8
_TORCH_NAMES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
}


@attrs.frozen(eq=False)
class GgufTensor:
    """One tensor of a file: where it lies and what it is."""

    name: str
    shape: tuple[int, ...]
    """Outermost axis first (the file has the opposite order)."""
    type: GgufType
    offset: int
    """Absolute, in bytes."""
    source: RegularFile

    @property
    def stored_type(self) -> str:
        """Name of the type, e.g. ``"Q4_1"``."""
        return self.type.name

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows * self.type.row_bytes(self.shape[-1])

    @property
    def file(self) -> str:
        """Path of the file (of the part, for split files)."""
        return str(self.source.path)

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Read rows ``start:stop`` of the outermost axis into fresh host memory.

        A plain type gives ``[stop - start, *shape[1:]]`` of its own dtype, a block type ``uint8
        [stop - start, bytes per row]``; a block-type vector has one row and is read whole. Raises
        `CheckpointError` for a range outside the tensor or a file that became shorter.
        """
        import torch

        rows = 1 if len(self.shape) == 1 and not self.type.plain else self.shape[0]
        end = rows if stop is None else stop
        if not 0 <= start <= end <= rows:
            raise CheckpointError(
                f"{self.file}: tensor {self.name!r} has {rows} rows; rows {start} to {end} were "
                "asked for"
            )
        row_bytes = self.nbytes // rows
        if start == end:
            data = torch.empty(0, dtype=torch.uint8)
        else:
            what = f"tensor {self.name!r}"
            offset = self.offset + start * row_bytes
            data = torch.frombuffer(
                self.source.read(offset, (end - start) * row_bytes, what), dtype=torch.uint8
            )
        if not self.type.plain:
            return data.view(end - start, row_bytes)
        return data.view(getattr(torch, _TORCH_NAMES[self.type.name])).view(
            end - start, *self.shape[1:]
        )


@attrs.frozen(eq=False)
class GgufFile:
    """One parsed file. Keep it open while tensors or arrays are read."""

    source: RegularFile
    version: int
    metadata: Metadata
    tensors: Mapping[str, GgufTensor]

    @property
    def path(self) -> Path:
        """Path it was opened by."""
        return self.source.path

    def close(self) -> None:
        """Close the file; later reads fail."""
        self.source.close()


def read_gguf(path: str | Path) -> GgufFile:
    """Open and check one file. Raises `CheckpointError` for every fault; tensor data are not
    read."""
    source = RegularFile(Path(path))
    try:
        cursor = Cursor(source)
        version, tensor_count, pair_count = _read_head(cursor)
        metadata = read_metadata(cursor, pair_count)
        tensors = _read_infos(cursor, tensor_count, _alignment(source, metadata))
    except BaseException:
        source.close()
        raise
    return GgufFile(source, version, metadata, MappingProxyType(tensors))


def _read_head(cursor: Cursor) -> tuple[int, int, int]:
    path = cursor.file.path
    magic = cursor.take(4, "the magic")
    if magic in _OLD_MAGICS:
        raise CheckpointError(
            f"{path}: is in the old format {_OLD_MAGICS[magic]}; convert it to GGUF version 3"
        )
    if magic != MAGIC:
        raise CheckpointError(
            f"{path}: is not a GGUF file: it starts with {magic!r} instead of {MAGIC!r}"
        )
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version:
        raise CheckpointError(
            f"{path}: is a big-endian GGUF file; only little-endian files are supported"
        )
    if version not in (2, 3):
        raise CheckpointError(f"{path}: has GGUF version {version}; versions 2 and 3 are supported")
    tensor_count = cursor.u64("the tensor count")
    pair_count = cursor.u64("the metadata count")
    check_count(cursor, tensor_count, "tensors", MAX_TENSORS, _SMALLEST_INFO)
    return version, tensor_count, pair_count


def _alignment(source: RegularFile, metadata: Metadata) -> int:
    value = metadata.typed("general.alignment", int, DEFAULT_ALIGNMENT)
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise CheckpointError(
            f"{source.path}: key 'general.alignment' is {value}; a power of two from 8 to "
            f"{MAX_ALIGNMENT} is allowed"
        )
    return value


def _read_infos(cursor: Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """Read `count` tensor infos; offsets become absolute and are checked against the file and
    each other."""
    tensors: dict[str, GgufTensor] = {}
    for index in range(count):
        tensor = _read_info(cursor, index, alignment)
        if tensor.name in tensors:
            raise CheckpointError(f"{cursor.file.path}: tensor {tensor.name!r} occurs twice")
        tensors[tensor.name] = tensor
    start = -(-cursor.offset // alignment) * alignment
    placed = {
        name: attrs.evolve(tensor, offset=tensor.offset + start) for name, tensor in tensors.items()
    }
    _check_places(cursor.file, placed)
    return placed


def _read_info(cursor: Cursor, index: int, alignment: int) -> GgufTensor:
    name = cursor.string(f"the name of tensor number {index}", NAME_LIMIT)
    where = f"{cursor.file.path}: tensor {name!r}"
    what = f"the description of tensor {name!r}"
    if not name:
        raise CheckpointError(f"{cursor.file.path}: tensor number {index} has an empty name")
    n_dims = cursor.u32(what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise CheckpointError(f"{where} has {n_dims} dimensions; 1 to {MAX_DIMS} are allowed")
    shape = tuple(cursor.u64(what) for _ in range(n_dims))[::-1]
    kind = _tensor_type(where, cursor.u32(what))
    offset = cursor.u64(what)
    _check_shape(where, shape, kind)
    if offset % alignment:
        raise CheckpointError(
            f"{where} has offset {offset}, which is not a multiple of the alignment {alignment}"
        )
    return GgufTensor(name, shape, kind, offset, cursor.file)


def _tensor_type(where: str, type_id: int) -> GgufType:
    if type_id in REMOVED_TYPES:
        raise CheckpointError(
            f"{where} has type {type_id} ({REMOVED_TYPES[type_id]}), which GGUF has withdrawn"
        )
    if type_id not in TYPES:
        raise CheckpointError(f"{where} has the unknown type {type_id}")
    return TYPES[type_id]


def _check_shape(where: str, shape: tuple[int, ...], kind: GgufType) -> None:
    elements = 1
    for size in shape:
        elements *= size
    if elements == 0:
        raise CheckpointError(
            f"{where} has shape {list(shape)}; every dimension must be at least 1"
        )
    if elements >= 1 << 63:
        raise CheckpointError(
            f"{where} has shape {list(shape)}: the product does not fit in 63 bits"
        )
    if shape[-1] % kind.block_size:
        raise CheckpointError(
            f"{where} has rows of {shape[-1]} elements; type {kind.name} needs a multiple of "
            f"{kind.block_size}"
        )


def _check_places(source: RegularFile, tensors: dict[str, GgufTensor]) -> None:
    previous: GgufTensor | None = None
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset + tensor.nbytes > source.size:
            raise CheckpointError(
                f"{source.path}: tensor {tensor.name!r} lies at bytes {tensor.offset} to "
                f"{tensor.offset + tensor.nbytes}, past the end of the file ({source.size} "
                "bytes): the file is "
                "truncated or its description is wrong"
            )
        if previous is not None and previous.offset + previous.nbytes > tensor.offset:
            raise CheckpointError(
                f"{source.path}: tensors {previous.name!r} and {tensor.name!r} overlap"
            )
        previous = tensor
