"""Writing small GGUF files, good ones and broken ones, and simple quantisers. For tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from pegboard_quant_gguf.quantise import quantise_blocks
from pegboard_quant_gguf.types import TYPES_BY_NAME
from pegboard_quant_gguf.unpack import LAYOUTS

__all__ = ["RawValue", "TensorData", "quantise_rows", "tensor_data", "write_gguf"]

_ALIGNMENT = 32


@attrs.frozen
class RawValue:
    """A metadata value given as type id and bytes, to write what no sane writer would."""

    type_id: int
    payload: bytes


@attrs.frozen
class TensorData:
    """One tensor as it will stand in the file."""

    name: str
    dims: tuple[int, ...]
    """Innermost first, as in the file."""
    type_id: int
    data: bytes
    offset: int | None = None
    """Written instead of the right one."""
    n_dims: int | None = None
    """Written instead of the number of `dims`."""
    raw_name: bytes | None = None
    """Written instead of `name` in UTF-8."""


def tensor_data(name: str, value: torch.Tensor, stored_type: str = "F32") -> TensorData:
    """`value` stored as `stored_type`; block types are made with `quantise_rows`."""
    kind = TYPES_BY_NAME[stored_type]
    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    data = (
        value.to(dtypes[stored_type])
        if stored_type in dtypes
        else quantise_rows(value, stored_type)
    )
    return TensorData(
        name,
        tuple(value.shape[::-1]),
        kind.type_id,
        bytes(data.contiguous().view(torch.uint8).flatten()),
    )


def write_gguf(
    path: Path,
    metadata: Mapping[str, Any] | Sequence[tuple[str, Any]] = (),
    tensors: Sequence[TensorData] = (),
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    pair_count: int | None = None,
    alignment: int = _ALIGNMENT,
) -> Path:
    """Write a file and return its path. Keywords and `RawValue` say what is to be wrong with it."""
    pairs = list(metadata.items()) if isinstance(metadata, Mapping) else list(metadata)
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(pairs) if pair_count is None else pair_count,
    )
    head += b"".join(_string(key) + _typed(value) for key, value in pairs)
    body = b""
    for tensor in tensors:
        head += _info(tensor, len(body))
        body += _padded(tensor.data, alignment)
    path.write_bytes(_padded(head, alignment) + body if tensors else head)
    return path


def quantise_rows(value: torch.Tensor, stored_type: str) -> torch.Tensor:
    """Round ``float [..., columns]`` to the blocks of a type, simply: ``uint8 [rows, row
    bytes]``."""
    if stored_type in LAYOUTS:
        return quantise_blocks(value, stored_type)
    blocks = value.float().reshape(-1, 32)
    low, high = blocks.amin(1, keepdim=True), blocks.amax(1, keepdim=True)
    peak = torch.maximum(high, -low)
    if stored_type == "Q8_0":
        scale = (peak / 127).half()
        codes = _rounded(blocks, scale).clamp(-127, 127).to(torch.int8).view(torch.uint8)
        return torch.cat((_bytes(scale), codes), 1).view(value.shape[:-1].numel(), -1)
    if stored_type == "Q4_0":
        scale = (peak / 7).half()
        head, codes = _bytes(scale), _rounded(blocks, scale) + 8
    else:
        assert stored_type == "Q4_1"
        scale, low = ((high - low) / 15).half(), low.half()
        head, codes = (
            torch.cat((_bytes(scale), _bytes(low)), 1),
            _rounded(blocks - low.float(), scale),
        )
    small = codes.clamp(0, 15).to(torch.uint8)
    return torch.cat((head, small[:, :16] | small[:, 16:] << 4), 1).view(
        value.shape[:-1].numel(), -1
    )


def _rounded(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    wide = scale.float()
    return torch.where(wide == 0, 0, blocks / wide).round()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().view(torch.uint8)


def _padded(data: bytes, alignment: int) -> bytes:
    return data + b"\0" * (-len(data) % alignment)


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _info(tensor: TensorData, place: int) -> bytes:
    name = tensor.name if tensor.raw_name is None else tensor.raw_name
    n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
    offset = place if tensor.offset is None else tensor.offset
    dims = struct.pack(f"<I{len(tensor.dims)}Q", n_dims, *tensor.dims)
    return _string(name) + dims + struct.pack("<IQ", tensor.type_id, offset)


def _typed(value: Any) -> bytes:
    kind, payload = _encode(value)
    return struct.pack("<I", kind) + payload


def _encode(value: Any) -> tuple[int, bytes]:
    """Type id and bytes: bool, u32 or i64, f32, string, array (integers as i32)."""
    if isinstance(value, RawValue):
        return value.type_id, value.payload
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, int):
        return (
            (4, struct.pack("<I", value))
            if 0 <= value < 1 << 32
            else (11, struct.pack("<q", value))
        )
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    return 9, _encode_array(value)


def _encode_array(values: Sequence[Any]) -> bytes:
    kind = _encode(values[0])[0] if values else 4
    if kind in (4, 11):
        return struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)
    return struct.pack("<IQ", kind, len(values)) + b"".join(_encode(value)[1] for value in values)
