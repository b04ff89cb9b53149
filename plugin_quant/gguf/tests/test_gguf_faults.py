"""Broken files are refused with the file and the key or tensor in the message, in bounded time
and memory."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.errors import CheckpointError, UnsupportedError
from pegboard_quant_gguf.reader import read_gguf
from pegboard_quant_gguf.source import open_checkpoint, probe
from pegboard_quant_gguf.testing import RawValue, TensorData, tensor_data, write_gguf
from pegboard_quant_gguf.types import SUPPORTED_TYPES, TYPES

Refusal = Callable[[Path], str]
HUGE = 1 << 60
MODEL = {"general.architecture": "llama"}


def tensor(
    name: str = "blk.0.attn_q.weight", dims: tuple[int, ...] = (32, 4), **more: Any
) -> TensorData:
    return TensorData(name, dims, more.pop("type_id", 0), more.pop("data", bytes(512)), **more)


def test_an_empty_file_a_directory_a_missing_file_and_a_pipe_are_refused(
    tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "dir.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is empty" in refusal(tmp_path / "empty.gguf")
    assert "not a regular file" in refusal(tmp_path / "dir.gguf")
    assert "not a regular file" in refusal(tmp_path / "pipe.gguf")
    assert "No such file" in refusal(tmp_path / "none.gguf")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"magic": b"GGXF"}, "not a GGUF file"),
        ({"magic": b"tjgg"}, "old format GGJT"),
        ({"version": 1}, "version 1; versions 2 and 3"),
        ({"version": 9}, "version 9; versions 2 and 3"),
        ({"version": 3 << 24}, "big-endian"),
        ({"tensor_count": HUGE}, f"claims {HUGE} tensors"),
        ({"tensor_count": HUGE}, "at most 262144 are allowed"),
        ({"tensor_count": 20}, "claims 20 tensors, which take at least 640 bytes"),
        ({"tensor_count": 20}, "bytes follow: the file is cut short or damaged"),
        ({"pair_count": HUGE}, f"claims {HUGE} metadata pairs"),
        ({"pair_count": 3}, "metadata key number 2"),
    ],
)
def test_o35cf_a_bad_head_is_refused(
    file: Path, fault: dict[str, Any], words: str, refusal: Refusal
) -> None:
    assert words in refusal(write_gguf(file, MODEL, [tensor(data=bytes(32), dims=(8,))], **fault))


def array(kind: int, count: int, payload: bytes = b"") -> RawValue:
    return RawValue(9, struct.pack("<IQ", kind, count) + payload)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (RawValue(8, struct.pack("<Q", HUGE)), f"claims {HUGE} bytes"),
        (RawValue(8, struct.pack("<Q", 5000)), "ends inside the value of key 'k'"),
        (RawValue(8, struct.pack("<Q", 2) + b"\xff\xfe"), "not valid UTF-8"),
        (RawValue(13, b""), "unknown value type 13"),
        (RawValue(7, b"\x02"), "holds the bool 2"),
        (array(5, HUGE), f"claims {HUGE} elements"),
        (array(8, HUGE), f"claims {HUGE} elements"),
        (array(9, HUGE), f"claims {HUGE} elements"),
        (array(8, 2, struct.pack("<QQ", HUGE, 0)), "ends inside the array"),
        (array(77, 1), "unknown element type 77"),
        (RawValue(9, struct.pack("<IQ", 9, 1) * 8), "nested more than 4 deep"),
    ],
)
def test_o35c_a_bad_value_is_refused_with_its_key(
    file: Path, value: RawValue, words: str, refusal: Refusal
) -> None:
    message = refusal(write_gguf(file, [*MODEL.items(), ("k", value)], [tensor()]))
    assert words in message
    assert "'k'" in message


def test_strings_of_an_array_are_checked_when_they_are_decoded(file: Path) -> None:
    bad = array(8, 2, struct.pack("<Q", 1) + b"a" + struct.pack("<Q", 1) + b"\xff")
    metadata = read_gguf(write_gguf(file, [("k", bad)])).metadata
    with pytest.raises(CheckpointError, match="element 1 of key 'k' is not valid UTF-8"):
        metadata["k"]


def test_o35c_a_duplicate_key_is_refused(file: Path, refusal: Refusal) -> None:
    assert "'a.b' occurs twice" in refusal(write_gguf(file, [("a.b", 1), ("a.b", 1)]))


def test_an_empty_key_is_refused(file: Path, refusal: Refusal) -> None:
    assert "key number 0 is empty" in refusal(write_gguf(file, [("", 1)]))


@pytest.mark.parametrize("value", [0, 3, 4, 24, 1 << 31, "32", -32])
def test_o35c_a_bad_alignment_is_refused(file: Path, value: Any, refusal: Refusal) -> None:
    assert "'general.alignment'" in refusal(
        write_gguf(file, {**MODEL, "general.alignment": value}, [tensor()])
    )


def test_a_missing_architecture_is_refused(file: Path, refusal: Refusal) -> None:
    assert "'general.architecture' is missing" in refusal(write_gguf(file, {"a": 1}))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"n_dims": 0}, "has 0 dimensions"),
        ({"n_dims": 5}, "has 5 dimensions"),
        ({"n_dims": 10**6}, "has 1000000 dimensions"),
        ({"dims": (0, 4)}, "at least 1"),
        ({"dims": (32, 0)}, "at least 1"),
        ({"dims": (1 << 40, 1 << 40)}, "does not fit in 63 bits"),
        ({"dims": (1 << 63, 1)}, "does not fit in 63 bits"),
        ({"dims": (32, 1 << 50)}, "past the end of the file"),
        ({"offset": 1 << 40}, "past the end of the file"),
        ({"offset": (1 << 64) - 32}, "past the end of the file"),
        ({"offset": 8}, "not a multiple of the alignment 32"),
        ({"type_id": 36}, "type 36 (IQ4_NL_4_4), which GGUF has withdrawn"),
        ({"type_id": 200}, "unknown type 200"),
        ({"type_id": 2, "dims": (48, 4)}, "rows of 48 elements; type Q4_0 needs a multiple of 32"),
        (
            {"type_id": 14, "dims": (288, 4)},
            "rows of 288 elements; type Q6_K needs a multiple of 256",
        ),
    ],
)
def test_o35c_a_bad_tensor_is_refused_with_its_name(
    file: Path, fault: dict[str, Any], words: str, refusal: Refusal
) -> None:
    message = refusal(write_gguf(file, MODEL, [tensor(**fault)]))
    assert words in message
    assert "'blk.0.attn_q.weight'" in message


def test_a_tensor_name_must_be_text_of_bounded_length(file: Path, refusal: Refusal) -> None:
    assert "tensor number 0 is not valid UTF-8" in refusal(
        write_gguf(file, MODEL, [tensor(raw_name=b"\xff\xff")])
    )
    assert "claims 70000 bytes" in refusal(write_gguf(file, MODEL, [tensor(name="x" * 70000)]))
    assert "empty name" in refusal(write_gguf(file, MODEL, [tensor(name="")]))


def test_duplicate_and_overlapping_tensors_are_refused(file: Path, refusal: Refusal) -> None:
    assert "'a' occurs twice" in refusal(write_gguf(file, MODEL, [tensor("a"), tensor("a")]))
    message = refusal(write_gguf(file, MODEL, [tensor("a"), tensor("b", offset=480)]))
    assert "'a' and 'b' overlap" in message


@pytest.mark.parametrize(
    "kind", [kind for kind in TYPES.values() if kind.name not in SUPPORTED_TYPES and not kind.plain]
)
def test_o35b_a_type_that_is_not_supported_is_refused_by_name(file: Path, kind: Any) -> None:
    stored = TensorData("w", (kind.block_size,), kind.type_id, bytes(kind.block_bytes))
    with pytest.raises(
        UnsupportedError,
        match=f"'w' is stored as {kind.name}; {kind.name} is not supported by this",
    ):
        open_checkpoint(str(write_gguf(file, MODEL, [stored])))


def test_a_file_cut_anywhere_is_refused(file: Path, refusal: Refusal) -> None:
    """Cut by 100 bytes, and cut in every place of the header."""
    tensors = [tensor_data("a", torch.randn(4, 32)), tensor_data("b", torch.randn(4, 32), "Q8_0")]
    whole = write_gguf(file, {**MODEL, "words": ["x", "yy"]}, tensors).read_bytes()
    file.write_bytes(whole[:-100])
    assert "'b'" in refusal(file)
    for length in range(1, len(whole) - 600):
        file.write_bytes(whole[:length])
        refusal(file)


def test_a_file_that_shrinks_after_opening_gives_an_error_and_no_zeros(file: Path) -> None:
    found = open_checkpoint(str(write_gguf(file, MODEL, [tensor()]))).tensors["blk.0.attn_q.weight"]
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"ends inside tensor 'blk.0.attn_q.weight'"):
        found.read()


def test_a_closed_file_gives_an_error(file: Path) -> None:
    checkpoint = open_checkpoint(str(write_gguf(file, MODEL, [tensor()])))
    checkpoint.close()
    with pytest.raises(CheckpointError, match="after the file was closed"):
        checkpoint.tensors["blk.0.attn_q.weight"].read()


def test_a_long_header_is_not_read_without_end(file: Path, refusal: Refusal) -> None:
    """A sparse file may claim gigabytes of metadata that are really there."""
    count = (1 << 33) // 4
    write_gguf(file, [("k", array(4, count)), ("after", 1)])
    with file.open("r+b") as stream:
        stream.truncate(1 << 34)
    assert "beyond the first" in refusal(file)


def test_probe_goes_by_name_or_magic(tmp_path: Path) -> None:
    assert probe(str(write_gguf(tmp_path / "blob", MODEL)))
    (tmp_path / "other.bin").write_bytes(b"PK\3\4")
    (tmp_path / "broken.gguf").write_bytes(b"")
    assert not probe(str(tmp_path / "other.bin"))
    assert probe(str(tmp_path / "broken.gguf"))
    assert not probe(str(tmp_path))
    assert not probe(str(tmp_path / "none.gguf"))
