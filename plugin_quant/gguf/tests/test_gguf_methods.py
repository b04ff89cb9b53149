"""Layers: products, look-ups and in-place updates against plain arithmetic with the dequantised
weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pegboard.api.quant import LayerSpec, QuantContext, SourceTensor
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_quant_gguf import kernels, packed
from pegboard_quant_gguf.dequant import dequantise_rows
from pegboard_quant_gguf.kernels import NibbleTiles, RawRows, SignedTiles
from pegboard_quant_gguf.packed import PackedNibbles
from pegboard_quant_gguf.quantizer import quantizer
from pegboard_quant_gguf.testing import quantise_rows

PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
INPUTS = 96


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that every test walks several of them, the last one narrower."""
    monkeypatch.setattr(kernels, "TILE_ELEMENTS", 64 * INPUTS)


def layer(types: tuple[str, ...], sizes: tuple[int, ...], **more: Any) -> LayerSpec:
    sources = tuple(
        (
            SourceTensor(f"blk.0.{part}.bias", "F32", (size,)),
            SourceTensor(f"blk.0.{part}.weight", stored, (size, INPUTS)),
        )
        for part, (stored, size) in enumerate(zip(types, sizes, strict=True))
    )
    kind = more.pop("kind", "linear")
    return LayerSpec("layers.0.x", kind, INPUTS, sizes, sources=sources, **more)


def stored_rows(stored_type: str, size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """One part as the loader delivers it."""
    value = torch.randn(size, INPUTS, generator=torch.Generator().manual_seed(seed))
    return value.to(dtype) if stored_type in PLAIN else quantise_rows(value, stored_type)


def loaded(types: tuple[str, ...], sizes: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    parts = zip(types, sizes, strict=True)
    rows = [
        stored_rows(stored, size, getattr(torch, dtype), seed + part)
        for part, (stored, size) in enumerate(parts)
    ]
    return {"weight": rows}


def values(weights: Any, types: tuple[str, ...]) -> torch.Tensor:
    """The layer's weight by the format's definition."""
    return torch.cat([dequantise_rows(w, t) for w, t in zip(weights["weight"], types, strict=True)])


STACKS = [
    (("Q4_1",), (200,)),
    (("Q4_0",), (64,)),
    (("Q8_0",), (130,)),
    (("Q4_1", "Q4_1", "Q4_1"), (128, 32, 32)),
    (("Q4_1", "Q4_0", "Q8_0"), (128, 33, 31)),
    (("Q4_1", "F32", "F16", "Q4_1"), (17, 16, 8, 100)),
]


@pytest.mark.parametrize(("types", "sizes"), STACKS)
@pytest.mark.parametrize("rows", [0, 1, 3, 50])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_apply_is_the_product_with_the_dequantised_weight(
    types: tuple[str, ...], sizes: tuple[int, ...], rows: int, dtype: str
) -> None:
    method = quantizer(QuantContext(dtype)).method(layer(types, sizes))
    assert method is not None
    weights = loaded(types, sizes, dtype)
    params = method.finalise(weights, None)
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(9)).to(
        getattr(torch, dtype)
    )
    y = method.apply(params, x)
    assert (y.dtype, tuple(y.shape)) == (x.dtype, (rows, sum(sizes)))
    for weight in (values(weights, types), method.dequantise(params)):
        expected = x.double() @ weight.double().T
        tolerance = {"float32": 1e-6, "bfloat16": 6e-3, "float16": 1e-3}[dtype]
        assert (y.double() - expected).norm() <= tolerance * expected.norm()


@pytest.mark.parametrize(("types", "sizes"), STACKS)
@pytest.mark.parametrize("rows", [0, 3, 50])
def test_the_fast_mode_takes_and_gives_float32(
    types: tuple[str, ...], sizes: tuple[int, ...], rows: int
) -> None:
    method = quantizer(QuantContext("bfloat16")).method(layer(types, sizes))
    assert method is not None
    params = method.finalise(loaded(types, sizes, "bfloat16"), None)
    x = torch.randn(rows, INPUTS, generator=torch.Generator().manual_seed(9))
    y = method.apply(params, x)
    assert (y.dtype, tuple(y.shape)) == (torch.float32, (rows, sum(sizes)))
    expected = x.double() @ method.dequantise(params).double().T
    assert (y.double() - expected).norm() <= 6e-3 * expected.norm()


@pytest.mark.parametrize(("types", "sizes"), STACKS)
def test_exact_dequantise_is_the_format_bit_for_bit(
    types: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    method = quantizer(QuantContext("float32")).method(layer(types, sizes))
    assert method is not None
    weights = loaded(types, sizes, "float32")
    assert torch.equal(method.dequantise(method.finalise(weights, None)), values(weights, types))


@pytest.mark.parametrize("stored_type", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_lookup_gives_the_rows_of_dequantise(stored_type: str, dtype: str) -> None:
    spec = layer((stored_type,), (150,), kind="embedding", role="vocab")
    method = quantizer(QuantContext(dtype)).method(spec)
    assert method is not None
    params = method.finalise(loaded((stored_type,), (150,), dtype), None)
    ids = torch.tensor([149, 0, 31, 32, 64, 0, 77])
    found = method.lookup(params, ids)
    assert torch.equal(found, method.dequantise(params)[ids].to(found.dtype))
    assert method.lookup(params, ids[:0]).shape == (0, INPUTS)


@pytest.mark.parametrize(("units", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_the_fast_mode_keeps_rows_wide_where_the_processor_has_no_bfloat16(
    units: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pegboard_quant_gguf.quantizer.has_bfloat16_units", lambda: units)
    spec = layer(("Q8_0",), (40,), kind="embedding", role="vocab")
    method = quantizer(QuantContext("bfloat16")).method(spec)
    assert method is not None
    params = method.finalise(loaded(("Q8_0",), (40,), "bfloat16"), None)
    assert method.lookup(params, torch.tensor([3, 0])).dtype == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_finalising_again_writes_into_the_same_tensors(dtype: str) -> None:
    types, sizes = ("Q4_1", "Q8_0"), (70, 20)
    method = quantizer(QuantContext(dtype)).method(layer(types, sizes))
    assert method is not None
    params = method.finalise(loaded(types, sizes, dtype), None)
    places = {name: value.data_ptr() for name, value in params.items()}
    fresh = loaded(types, sizes, dtype, seed=50)
    updated = method.finalise(fresh, params)
    assert {name: value.data_ptr() for name, value in updated.items()} == places
    expected = values(fresh, types)
    assert (method.dequantise(updated) - expected).norm() < 3e-3 * expected.norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_stay_quantised_in_memory(dtype: str) -> None:
    types, sizes = ("Q4_1", "Q8_0"), (1024, 1024)
    method = quantizer(QuantContext(dtype)).method(layer(types, sizes))
    assert method is not None
    weights = loaded(types, sizes, dtype)
    stored = sum(rows.nbytes for rows in weights["weight"])
    kept = sum(value.nbytes for value in method.finalise(weights, None).values())
    assert kept <= stored


def test_parts_of_one_type_are_kept_as_one_weight() -> None:
    method = quantizer(QuantContext("float32")).method(layer(("Q4_1",) * 3, (64, 32, 32)))
    assert method is not None
    params = method.finalise(loaded(("Q4_1",) * 3, (64, 32, 32), "float32"), None)
    assert set(params) == {"codes", "scale", "low"}


def test_a_sharded_layer_takes_whole_blocks() -> None:
    rows = quantizer(QuantContext("float32")).method(layer(("Q4_1",), (64,), role="row"))
    columns = quantizer(QuantContext("float32")).method(layer(("Q8_0",), (64,), role="column"))
    assert rows is not None
    assert columns is not None
    (row_spec,), (column_spec,) = rows.parameters(0), columns.parameters(0)
    assert (row_spec.shape, row_spec.shard_axis, row_spec.granule) == ((64, 60), 1, 20)
    assert (column_spec.shape, column_spec.shard_axis, column_spec.granule) == ((64, 102), 0, 1)


def test_shards_add_up_to_the_whole_product() -> None:
    weights = loaded(("Q4_1",), (64,), "float32")
    x = torch.randn(2, INPUTS)
    whole = x @ values(weights, ("Q4_1",)).T
    halves = []
    for rank in range(2):
        spec = layer(("Q4_1",), (64,), role="column", rank=rank, world=2)
        method = quantizer(QuantContext("float32")).method(spec)
        assert method is not None
        shard = {"weight": [weights["weight"][0][32 * rank : 32 * rank + 32]]}
        halves.append(method.apply(method.finalise(shard, None), x))
    assert torch.allclose(torch.cat(halves, 1), whole, atol=1e-5)


def test_plain_layers_are_left_to_the_core() -> None:
    give = quantizer(QuantContext("float32")).method
    assert give(layer(("F32", "BF16"), (8, 8))) is None
    assert give(LayerSpec("x", "linear", INPUTS, (8,))) is None


def test_what_is_not_supported_is_refused_by_name() -> None:
    give = quantizer(QuantContext("float32")).method
    with pytest.raises(UnsupportedError, match=r"layers.0.x: tensor 'blk.0.1.weight' .* TQ1_0"):
        give(layer(("Q4_1", "TQ1_0"), (8, 8)))
    with pytest.raises(UnsupportedError, match="quantised experts"):
        give(layer(("Q4_1",), (8,), kind="experts", experts=4))
    odd = LayerSpec(
        "x", "linear", 48, (8,), sources=((SourceTensor("w.weight", "Q4_0", (8, 48)),),)
    )
    method = give(odd)
    assert method is not None
    with pytest.raises(ConfigError, match="48 inputs are no multiple of 32"):
        method.parameters(0)


@pytest.mark.parametrize("kernel", [NibbleTiles("Q4_0"), NibbleTiles("Q4_1"), SignedTiles()])
def test_the_fast_layouts_agree_with_rows_as_stored(kernel: Any) -> None:
    stored_type = getattr(kernel, "_type", "Q8_0")
    raw = stored_rows(stored_type, 300, torch.float32, 3)
    plain, x = RawRows(stored_type), torch.randn(5, INPUTS)
    expected = plain.multiply(plain.prepare(raw), x, 300)
    assert torch.allclose(kernel.multiply(kernel.prepare(raw), x, 300), expected, atol=1e-4)
    ids = torch.tensor([299, 5])
    assert torch.equal(kernel.rows(kernel.prepare(raw), ids), plain.rows(plain.prepare(raw), ids))


@pytest.mark.parametrize("units", [True, False])
@pytest.mark.parametrize("rows", [packed.FEW_ROWS, packed.FEW_ROWS + 1, 200])
def test_few_and_many_rows_give_the_same_with_packed_weights(rows: int, units: bool) -> None:
    width = packed.packed_width()
    # Where this processor's int4 layout is not known, that is what does all the work.
    kernel = NibbleTiles("Q4_1") if width is None else PackedNibbles("Q4_1", width, units)
    raw = stored_rows("Q4_1", 200, torch.float32, 4)
    params, x = kernel.prepare(raw), torch.randn(rows, INPUTS).bfloat16()
    weight = kernel.rows(params, torch.arange(200))
    expected = x.double() @ weight.double().T
    error = (kernel.multiply(params, x, 200).double() - expected).norm() / expected.norm()
    assert error < 4e-3


def test_without_a_known_layout_the_tiles_do_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pegboard_quant_gguf.quantizer.packed_width", lambda: None)
    method = quantizer(QuantContext("bfloat16")).method(layer(("Q4_1",), (64,)))
    assert method is not None
    assert "codes" in method.finalise(loaded(("Q4_1",), (64,), "bfloat16"), None)


@pytest.mark.parametrize(
    "more",
    [{"kind": "head", "role": "vocab"}, {"kind": "embedding", "role": "vocab", "tied": True}],
)
def test_logits_are_not_rounded_to_the_compute_dtype(more: dict[str, Any]) -> None:
    types, sizes = ("Q8_0",), (130,)
    method = quantizer(QuantContext("bfloat16")).method(layer(types, sizes, **more))
    assert method is not None
    weights = loaded(types, sizes, "bfloat16")
    params = method.finalise(weights, None)
    x = torch.randn(3, INPUTS, generator=torch.Generator().manual_seed(9)).bfloat16()
    logits = method.apply(params, x)
    assert logits.dtype == torch.float32
    expected = x.double() @ values(weights, types).double().T
    assert (logits.double() - expected).norm() <= 1e-6 * expected.norm()
