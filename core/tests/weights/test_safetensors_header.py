from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.errors import CheckpointError
from pegboard.weights.header import read_header

TENSORS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.arange(4, dtype=torch.int32)}
"""24 and 16 bytes."""


def entry(**changes: Any) -> Any:
    """A change of tensor ``b``'s description."""
    return lambda header: header["b"].update(changes)


def put(key: str, value: Any) -> Any:
    return lambda header: header.update({key: value})


FAULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "header length 0": ({"length": 0}, ["header length is 0"]),
    "header length 2^60": ({"length": 2**60}, ["1152921504606846976", "at most 100000000"]),
    "header length 2^64 - 1": ({"length": 2**64 - 1}, ["18446744073709551615"]),
    "header longer than the file": ({"length": 9_000}, ["header length is 9000"]),
    "header not JSON": ({"header": b"not json at all"}, ["not valid JSON"]),
    "header not UTF-8": ({"header": b'{"\xff\xfe": 1}'}, ["not valid JSON"]),
    "header a list": ({"header": b"[1, 2]"}, ["not a JSON object"]),
    "header nested without end": ({"header": b"[" * 100_000}, ["not valid JSON"]),
    "header with a huge number": ({"header": b'{"a": ' + b"9" * 10_000 + b"}"}, ["not valid JSON"]),
    "duplicate key": ({"header": b'{"a": {}, "a": {}}'}, ["'a' occurs twice"]),
    "file cut short": ({"cut": 10}, ["'b'", "cut short"]),
    "overlapping ranges": (
        {"change": entry(data_offsets=[16, 32])},
        ["'b' overlaps tensor 'a'"],
    ),
    "equal ranges": ({"change": entry(data_offsets=[0, 16])}, ["overlaps"]),
    "a hole": ({"change": entry(data_offsets=[28, 44]), "tail": b"1234"}, ["4 bytes between"]),
    "bytes behind the last tensor": ({"tail": b"tail"}, ["4 bytes after tensor 'b'"]),
    "offset outside": ({"change": entry(data_offsets=[2**50, 2**50 + 16])}, ["'b'", "cut short"]),
    "offset of 2^100": ({"change": entry(data_offsets=[2**100, 2**100 + 16])}, ["'b'", "[begin"]),
    "negative offset": ({"change": entry(data_offsets=[-16, 0])}, ["'b'", "data_offsets"]),
    "end before begin": ({"change": entry(data_offsets=[40, 24])}, ["'b'", "data_offsets"]),
    "three offsets": ({"change": entry(data_offsets=[24, 30, 40])}, ["'b'", "data_offsets"]),
    "offset a boolean": ({"change": entry(data_offsets=[True, 16])}, ["'b'", "data_offsets"]),
    "no offsets": ({"change": put("b", {"dtype": "I32", "shape": [4]})}, ["'b'", "data_offsets"]),
    "unknown dtype": ({"change": entry(dtype="Q9_Z")}, ["'b'", "'Q9_Z' is unknown", "BF16"]),
    "dtype no text": ({"change": entry(dtype=["F32"])}, ["'b'", "is unknown"]),
    "shape larger than the range": (
        {"change": entry(shape=[5])},
        ["'b'", "takes 20 bytes", "span 16"],
    ),
    "shape of 2^62 squared": ({"change": entry(shape=[2**62, 2**62])}, ["'b'", "span 16"]),
    "shape negative": ({"change": entry(shape=[-4])}, ["'b'", "shape [-4]"]),
    "shape a number": ({"change": entry(shape=4)}, ["'b'", "shape 4"]),
    "a hundred thousand dimensions": ({"change": entry(shape=[1] * 100_000)}, ["'b'", "shape"]),
    "description no object": ({"change": put("b", 5)}, ["'b'", "not a JSON object"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_o34f_a_faulty_header_is_refused_by_file_and_tensor_in_bounded_time_and_memory(
    fault: str, tmp_path: Path, write_file: Any
) -> None:
    changes, words = FAULTS[fault]
    path = write_file(tmp_path / "model.safetensors", TENSORS, **changes)
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(CheckpointError) as caught:
        read_header(str(path))
    seconds, peak = time.perf_counter() - begin, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert seconds < 5
    assert peak < 64 * 1024 * 1024


@pytest.mark.parametrize("content", [b"", b"1234567"])
def test_a_file_too_short_for_a_length_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="too short"):
        read_header(str(path))


def test_a_directory_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a regular file"):
        read_header(str(tmp_path))


def test_a_good_header_gives_type_shape_and_place_of_each_tensor(
    tmp_path: Path, write_file: Any
) -> None:
    path = write_file(tmp_path / "x.safetensors", {**TENSORS, "empty": torch.zeros(0, 3)})
    header = read_header(str(path))
    assert set(header.entries) == {"a", "b", "empty"}
    assert header.entries["a"].shape == (2, 3)
    assert header.entries["b"].stored_type == "I32"
    assert header.entries["b"].offset == header.entries["a"].offset + 24
    assert header.entries["empty"].nbytes == 0
    assert header.size == path.stat().st_size
