"""Layers of 5-bit, K and IQ4 types, alone and mixed with others, against plain arithmetic with the
dequantised weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pegboard.api.quant import LayerSpec, LinearMethod, QuantContext, SourceTensor
from pegboard.errors import ConfigError
from pegboard_quant_gguf import kernels
from pegboard_quant_gguf.dequant import dequantise_rows
from pegboard_quant_gguf.quantizer import quantizer
from pegboard_quant_gguf.source import open_checkpoint
from pegboard_quant_gguf.testing import quantise_rows, tensor_data, write_gguf
from pegboard_quant_gguf.unpack import LAYOUTS

INPUTS = 512
STACKS = [
    *(((name,), (200,)) for name in LAYOUTS),
    (("Q4_K", "Q4_K", "Q6_K"), (128, 33, 31)),
    (("Q5_0", "Q8_0", "Q4_1", "Q5_0"), (17, 32, 8, 100)),
    (("Q3_K", "F32"), (40, 24)),
]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that every test walks several of them, the last one narrower."""
    monkeypatch.setattr(kernels, "TILE_ELEMENTS", 64 * INPUTS)


def method_for(types: tuple[str, ...], sizes: tuple[int, ...], dtype: str) -> LinearMethod:
    sources = tuple(
        (SourceTensor(f"blk.0.{part}.weight", stored, (size, INPUTS)),)
        for part, (stored, size) in enumerate(zip(types, sizes, strict=True))
    )
    method = quantizer(QuantContext(dtype)).method(
        LayerSpec("layers.0.x", "linear", INPUTS, sizes, sources=sources)
    )
    assert method is not None
    return method


def stored_rows(stored_type: str, size: int, seed: int = 0) -> torch.Tensor:
    value = torch.randn(size, INPUTS, generator=torch.Generator().manual_seed(seed))
    return value if stored_type == "F32" else quantise_rows(value, stored_type)


def weights(types: tuple[str, ...], sizes: tuple[int, ...], seed: int = 0) -> list[torch.Tensor]:
    pairs = zip(types, sizes, strict=True)
    return [stored_rows(kind, size, seed + part) for part, (kind, size) in enumerate(pairs)]


def values(rows: list[torch.Tensor], types: tuple[str, ...]) -> torch.Tensor:
    return torch.cat([dequantise_rows(raw, kind) for raw, kind in zip(rows, types, strict=True)])


@pytest.mark.parametrize(("types", "sizes"), STACKS)
@pytest.mark.parametrize("rows", [1, 40])
def test_exact_products_are_those_of_the_dequantised_weight(
    types: tuple[str, ...], sizes: tuple[int, ...], rows: int
) -> None:
    method, raw = method_for(types, sizes, "float32"), weights(types, sizes)
    params = method.finalise({"weight": raw}, None)
    expected = values(raw, types)
    assert torch.equal(method.dequantise(params), expected)
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(9))
    product = x.double() @ expected.double().T
    assert (method.apply(params, x).double() - product).norm() <= 1e-6 * product.norm()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("stored_type", list(LAYOUTS))
def test_products_of_narrow_activations_round_only_the_result(stored_type: str, dtype: str) -> None:
    method, raw = method_for((stored_type,), (70,), dtype), weights((stored_type,), (70,))
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(9)).to(getattr(torch, dtype))
    y = method.apply(method.finalise({"weight": raw}, None), x)
    expected = x.double() @ values(raw, (stored_type,)).double().T
    assert y.dtype == x.dtype
    tolerance = {"bfloat16": 4e-3, "float16": 5e-4}[dtype]
    assert (y.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize("stored_type", list(LAYOUTS))
def test_an_embedding_gives_single_rows(stored_type: str) -> None:
    method, raw = method_for((stored_type,), (150,), "float32"), weights((stored_type,), (150,))
    params = method.finalise({"weight": raw}, None)
    ids = torch.tensor([149, 0, 31, 31, 64])
    assert torch.equal(method.lookup(params, ids), values(raw, (stored_type,))[ids])
    assert method.lookup(params, ids[:0]).shape == (0, INPUTS)


def test_memory_is_that_of_the_file_and_updates_are_in_place() -> None:
    types, sizes = tuple(LAYOUTS), (32,) * len(LAYOUTS)
    method, raw = method_for(types, sizes, "float32"), weights(types, sizes)
    params = method.finalise({"weight": raw}, None)
    assert sum(value.nbytes for value in params.values()) == sum(rows.nbytes for rows in raw)
    places = {name: value.data_ptr() for name, value in params.items()}
    fresh = weights(types, sizes, seed=50)
    updated = method.finalise({"weight": fresh}, params)
    assert {name: value.data_ptr() for name, value in updated.items()} == places
    assert torch.equal(method.dequantise(updated), values(fresh, types))


def test_o35e_a_row_that_is_no_multiple_of_a_super_block_is_refused() -> None:
    source = SourceTensor("w.weight", "Q4_K", (8, 320))
    method = quantizer(QuantContext("float32")).method(
        LayerSpec("x", "linear", 320, (8,), sources=((source,),))
    )
    assert method is not None
    with pytest.raises(ConfigError, match="320 inputs are no multiple of 256, the block of Q4_K"):
        method.parameters(0)


def test_every_type_is_read_from_a_split_file(tmp_path: Path) -> None:
    """One tensor per part, three rows each; the part of a tensor has the bytes that were put in."""
    names, value = list(LAYOUTS), torch.randn(3, INPUTS)
    for number, name in enumerate(names):
        pairs = {"general.architecture": "llama"} if number == 0 else {}
        split = {"split.no": number, "split.count": len(names), "split.tensors.count": len(names)}
        path = tmp_path / f"m-{number + 1:05d}-of-{len(names):05d}.gguf"
        write_gguf(path, {**pairs, **split}, [tensor_data(name, value, name)])
    checkpoint = open_checkpoint(str(tmp_path / f"m-00001-of-{len(names):05d}.gguf"))
    for name in names:
        tensor = checkpoint.tensors[name]
        assert (tensor.stored_type, tensor.shape) == (name, (3, INPUTS))
        assert torch.equal(tensor.read(), quantise_rows(value, name))
        assert torch.equal(tensor.read(1, 2), quantise_rows(value, name)[1:2])
    checkpoint.close()
