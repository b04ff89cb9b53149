"""Reading good files: metadata, tensors, templates."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.errors import CheckpointError
from pegboard_quant_gguf.reader import read_gguf
from pegboard_quant_gguf.source import open_checkpoint
from pegboard_quant_gguf.testing import RawValue, TensorData, tensor_data, write_gguf

MODEL = {"general.architecture": "llama"}


def tensor(
    name: str = "blk.0.attn_q.weight", dims: tuple[int, ...] = (32, 4), **more: Any
) -> TensorData:
    return TensorData(name, dims, more.pop("type_id", 0), more.pop("data", bytes(512)), **more)


def test_every_kind_of_value_is_read_back(file: Path) -> None:
    scalars = {
        0: ("B", 200),
        1: ("b", -5),
        2: ("H", 60000),
        3: ("h", -300),
        4: ("I", 1 << 31),
        5: ("i", -7),
    }
    scalars |= {
        6: ("f", 0.5),
        7: ("B", 1),
        10: ("Q", 1 << 63),
        11: ("q", -(1 << 40)),
        12: ("d", 0.1),
    }
    pairs: list[tuple[str, Any]] = [
        (f"scalar.{kind}", RawValue(kind, struct.pack("<" + code, value)))
        for kind, (code, value) in scalars.items()
    ]
    pairs += [
        (f"array.{kind}", RawValue(9, struct.pack(f"<IQ2{code}", kind, 2, value, value)))
        for kind, (code, value) in scalars.items()
    ]
    inner = struct.pack("<IQ2i", 5, 2, 1, -2)
    empty = struct.pack("<IQ", 8, 0)
    pairs += [
        ("text", "grüße\n"),
        ("texts", ["a", "", "é"]),
        ("nested", RawValue(9, struct.pack("<IQ", 9, 2) + inner + empty)),
    ]
    metadata = read_gguf(write_gguf(file, pairs)).metadata
    for kind, (_, value) in scalars.items():
        assert metadata[f"scalar.{kind}"] == value
        assert metadata[f"array.{kind}"] == (value, value)
    assert metadata["scalar.7"] is True
    assert (metadata["text"], metadata["texts"]) == ("grüße\n", ("a", "", "é"))
    assert metadata["nested"] == ((1, -2), ())
    assert metadata.count("texts") == 3


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_tensors_are_read_whole_and_by_rows(file: Path, version: int, alignment: int) -> None:
    first, second = torch.randn(5, 3), torch.randn(2, 4, 6).half()
    tensors = [
        tensor_data("a", first),
        tensor_data("b", second, "F16"),
        tensor_data("c", first[0], "BF16"),
    ]
    write_gguf(
        file,
        {**MODEL, "general.alignment": alignment},
        tensors,
        version=version,
        alignment=alignment,
    )
    found = open_checkpoint(str(file)).tensors
    assert torch.equal(found["a"].read(), first)
    assert torch.equal(found["a"].read(1, 3), first[1:3])
    assert found["a"].read(2, 2).shape == (0, 3)
    assert torch.equal(found["b"].read(1), second[1:])
    assert torch.equal(found["c"].read(), first[0].bfloat16())
    assert (found["b"].shape, found["b"].stored_type, found["b"].nbytes) == ((2, 4, 6), "F16", 96)
    with pytest.raises(CheckpointError, match="'a' has 5 rows; rows 1 to 6"):
        found["a"].read(1, 6)


def test_block_types_are_read_as_rows_of_bytes(file: Path) -> None:
    stored = tensor_data("w", torch.randn(6, 64), "Q4_1")
    found = open_checkpoint(str(write_gguf(file, MODEL, [stored]))).tensors["w"]
    assert bytes(found.read().flatten()) == stored.data
    assert found.read(2, 5).shape == (3, 40)
    assert bytes(found.read(2, 5).flatten()) == stored.data[80:200]
    assert (found.shape, found.stored_type) == ((6, 64), "Q4_1")


def test_o35a_rope_factors_are_an_ordinary_tensor(file: Path) -> None:
    factors = torch.linspace(1, 8, 32)
    checkpoint = open_checkpoint(
        str(write_gguf(file, MODEL, [tensor_data("rope_freqs.weight", factors)]))
    )
    assert torch.equal(checkpoint.tensors["rope_freqs.weight"].read(), factors)


def test_config_is_the_metadata_without_the_tokeniser(file: Path) -> None:
    pairs = {
        **MODEL,
        "llama.block_count": 2,
        "llama.heads": [4, 8],
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.pre": "x",
    }
    config = open_checkpoint(str(write_gguf(file, pairs))).config
    assert dict(config) == {**MODEL, "llama.block_count": 2, "llama.heads": (4, 8)}
    assert "tokenizer.ggml.pre" not in config


def test_reading_needs_no_torch_until_a_tensor_is_read(file: Path) -> None:
    write_gguf(file, MODEL, [tensor()])
    code = (
        "import sys; from pegboard_quant_gguf.source import open_checkpoint; "
        f"open_checkpoint({str(file)!r}); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_h_a_file_without_chat_template_has_none(file: Path) -> None:
    assert dict(open_checkpoint(str(write_gguf(file, MODEL))).chat_templates) == {}


def test_chat_templates_have_names(file: Path) -> None:
    pairs = {**MODEL, "tokenizer.chat_template": "A", "tokenizer.chat_template.tool_use": "B"}
    assert dict(open_checkpoint(str(write_gguf(file, pairs))).chat_templates) == {
        "default": "A",
        "tool_use": "B",
    }


def test_sampling_defaults_get_our_names(file: Path) -> None:
    pairs = {**MODEL, "general.sampling.temp": 0.5, "general.sampling.top_k": 40}
    assert dict(open_checkpoint(str(write_gguf(file, pairs))).generation_defaults) == {
        "temperature": 0.5,
        "top_k": 40,
    }
