"""Weight owners of single layers, against float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from pegboard.api.quant import LayerSpec, LinearMethod, QuantContext, SourceTensor
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard_quant_fp8 import codes as plain
from pegboard_quant_fp8.device import DeviceProducts
from pegboard_quant_fp8.products import TiledProducts
from pegboard_quant_fp8.quantizer import quantizer

INPUTS = 200
STACKS = [(96,), (64, 32, 40)]
NUMBERS = {"num_bits": 8, "type": "float", "symmetric": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "tensor": {"quant_method": "fp8", "activation_scheme": "dynamic"},
    "static": {"quant_method": "fp8", "activation_scheme": "static"},
    "block": {"quant_method": "fp8", "weight_block_size": [32, 64]},
    "channel": {
        "quant_method": "compressed-tensors",
        "config_groups": {
            "a": {
                "targets": ["Linear", "Embedding"],
                "weights": {**NUMBERS, "strategy": "channel"},
                "input_activations": {**NUMBERS, "strategy": "token", "dynamic": True},
            }
        },
    },
}
TOLERANCE = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles so small that every test walks several of them, the last one narrower."""
    monkeypatch.setattr(plain, "TILE_ELEMENTS", 25 * INPUTS)


def stored(kind: str, sizes: Sequence[int], seed: int = 0) -> tuple[dict[str, Any], torch.Tensor]:
    """Loaded tensors by name, and the weight that they mean."""
    draw = torch.Generator().manual_seed(seed)
    loaded: dict[str, list[torch.Tensor]] = {}
    meant = []
    for part, size in enumerate(sizes):
        codes = (torch.randn(size, INPUTS, generator=draw) * 40).clamp(-448, 448).to(plain.CODES)
        shape = {"channel": (size, 1), "block": (-(-size // 32), -(-INPUTS // 64))}.get(kind, (1,))
        scale = torch.rand(shape, generator=draw) * 0.02
        wide = scale
        if kind == "block":
            wide = scale.repeat_interleave(32, 0)[:size].repeat_interleave(64, 1)[:, :INPUTS]
        name = "weight_scale_inv" if kind == "block" else "weight_scale"
        loaded.setdefault("weight", []).append(codes)
        loaded.setdefault(name, []).append(scale)
        if kind == "static":
            loaded.setdefault("input_scale", []).append(torch.tensor([0.01 * (part + 1)]))
        meant.append(codes.double() * wide.double())
    return loaded, torch.cat(meant)


def layer(loaded: dict[str, Any], **more: Any) -> LayerSpec:
    types = {torch.float32: "F32", plain.CODES: "F8_E4M3", torch.bfloat16: "BF16"}
    sizes = tuple(weight.shape[0] for weight in loaded["weight"])
    sources = tuple(
        tuple(
            SourceTensor(f"model.p{part}.{name}", types[values[part].dtype], values[part].shape)
            for name, values in loaded.items()
        )
        for part in range(len(sizes))
    )
    usual = {"kind": "linear", "role": "column", "sources": sources}
    return LayerSpec("layers.0.x", in_features=INPUTS, part_sizes=sizes, **{**usual, **more})


def method_for(
    scheme: str, loaded: dict[str, Any], dtype: str = "float32", **more: Any
) -> LinearMethod:
    method = quantizer(QuantContext(dtype, config=CONFIGS[scheme])).method(layer(loaded, **more))
    assert method is not None
    return method


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("sizes", STACKS)
def test_dequantise_is_what_codes_and_scales_say(kind: str, sizes: tuple[int, ...]) -> None:
    loaded, meant = stored(kind, sizes)
    method = method_for(kind, loaded)
    found = method.dequantise(method.finalise(loaded, None))
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), meant, rtol=2**-23, atol=0)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_apply_is_the_product_with_the_dequantised_weight(kind: str, dtype: str, rows: int) -> None:
    loaded, meant = stored(kind, (64, 32, 40))
    method = method_for(kind, loaded, dtype)
    params = method.finalise(loaded, None)
    x = torch.randn(rows, INPUTS).to(getattr(torch, dtype))
    y = method.apply(params, x)
    assert (y.dtype, tuple(y.shape)) == (x.dtype, (rows, 136))
    if rows:
        for weight in (meant, method.dequantise(params).double()):
            assert error(y, x.double() @ weight.T) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", CONFIGS)
def test_finalising_again_writes_into_the_same_tensors(kind: str) -> None:
    loaded, _ = stored(kind, (64, 32, 40))
    method = method_for(kind, loaded)
    params = method.finalise(loaded, None)
    places = {name: value.data_ptr() for name, value in params.items()}
    fresh, meant = stored(kind, (64, 32, 40), seed=1)
    updated = method.finalise(fresh, params)
    assert {name: value.data_ptr() for name, value in updated.items()} == places
    assert torch.allclose(method.dequantise(updated).double(), meant, rtol=2**-23, atol=0)


@pytest.mark.parametrize("kind", CONFIGS)
def test_an_embedding_gives_single_rows(kind: str) -> None:
    loaded, meant = stored(kind, (96,))
    method = method_for(kind, loaded, "bfloat16", kind="embedding", role="vocab", tied=True)
    params = method.finalise(loaded, None)
    ids = torch.tensor([95, 0, 33, 0])
    assert torch.equal(method.lookup(params, ids), meant[ids].float().bfloat16())
    assert method.lookup(params, ids[:0]).shape == (0, INPUTS)


def test_the_largest_static_scale_serves_all_parts() -> None:
    loaded, _ = stored("static", (64, 32, 40))
    params = method_for("static", loaded).finalise(loaded, None)
    assert torch.allclose(params["input_scale"], torch.tensor([0.03]))


@pytest.mark.parametrize("kind", CONFIGS)
def test_wanted_tensors_have_the_stored_names_and_shapes(kind: str) -> None:
    loaded, _ = stored(kind, (64, 32, 40))
    method = method_for(kind, loaded)
    for part in range(3):
        specs = {spec.name: (spec.shape, spec.dtype) for spec in method.parameters(part)}
        assert specs == {
            name: (tuple(values[part].shape), str(values[part].dtype).removeprefix("torch."))
            for name, values in loaded.items()
        }


def test_other_spellings_of_scales_are_found() -> None:
    loaded, meant = stored("static", (64,))
    loaded["weight_scale_inv"] = [loaded.pop("weight_scale")[0].reshape(())]
    loaded["activation_scale"] = [loaded.pop("input_scale")[0].reshape(())]
    method = method_for("static", loaded)
    assert {spec.name for spec in method.parameters(0)} == set(loaded)
    found = method.dequantise(method.finalise(loaded, None))
    assert torch.allclose(found.double(), meant, rtol=2**-23, atol=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
@pytest.mark.parametrize(("kind", "name"), [("channel", "weight_scale"), ("static", "input_scale")])
def test_a_scale_that_is_none_is_refused_by_name(kind: str, name: str, value: float) -> None:
    loaded, _ = stored(kind, (64, 32))
    loaded[name][1].reshape(-1)[0] = value
    with pytest.raises(CheckpointError, match=f"layers.0.x: tensor 'model.p1.{name}' must hold"):
        method_for(kind, loaded).finalise(loaded, None)


def test_a_scale_of_zero_makes_zeros_and_cannot_divide() -> None:
    loaded, _ = stored("channel", (64,))
    loaded["weight_scale"][0][5] = 0
    method = method_for("channel", loaded)
    assert not method.dequantise(method.finalise(loaded, None))[5].any()
    loaded, _ = stored("static", (64,))
    loaded["input_scale"][0][:] = 0
    with pytest.raises(CheckpointError, match="input_scale' must hold a finite number above 0"):
        method_for("static", loaded).finalise(loaded, None)


@pytest.mark.parametrize("sizes", STACKS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_plain_weights_are_rounded_when_the_user_asks(sizes: tuple[int, ...], dtype: str) -> None:
    parts = [torch.randn(size, INPUTS).to(getattr(torch, dtype)) for size in sizes]
    kept = torch.cat([part.double() for part in parts])
    loaded = {"weight": parts}
    method = quantizer(QuantContext(dtype)).method(layer(loaded))
    assert method is not None
    (spec,) = method.parameters(0)
    assert (spec.name, spec.shape, spec.dtype) == ("weight", (sizes[0], INPUTS), dtype)
    params = method.finalise(loaded, None)
    scale = kept.abs().amax(1) / 448
    assert torch.allclose(params["scale"].double(), scale, rtol=1e-6)
    bound = kept.abs() * 2**-4 + scale[:, None] * 2**-10
    found = method.dequantise(params).double()
    assert bool(((found - kept).abs() <= bound * (1 + 1e-5)).all())
    assert sum(value.nbytes for value in params.values()) == kept.numel() + 4 * sum(sizes)
    place = params["weight"].data_ptr()
    again = method.finalise({"weight": [part * 2 for part in parts]}, params)
    assert again["weight"].data_ptr() == place
    assert torch.equal(method.dequantise(again).double(), 2 * found)


def test_random_weights_take_the_geometry_of_the_checkpoint() -> None:
    bare = LayerSpec("layers.0.x", "linear", INPUTS, (64, 40), "column", sources=((), ()))
    method = quantizer(QuantContext("bfloat16", config=CONFIGS["block"])).method(bare)
    assert method is not None
    parts = [torch.randn(64, INPUTS).bfloat16(), torch.randn(40, INPUTS).bfloat16()]
    params = method.finalise({"weight": parts}, None)
    assert params["scale"].shape == (4, 4)
    assert error(method.dequantise(params), torch.cat(parts).double()) < 2**-4
    assert method.finalise({"weight": parts}, params)["weight"] is params["weight"]


def test_a_plain_weight_that_is_not_finite_is_refused() -> None:
    loaded = {"weight": [torch.full((8, INPUTS), float("inf"))]}
    method = quantizer(QuantContext("float32")).method(layer(loaded))
    assert method is not None
    with pytest.raises(CheckpointError, match=r"layers.0.x: .* not finite"):
        method.finalise(loaded, None)


@pytest.mark.parametrize(
    "more", [{"kind": "head"}, {"kind": "embedding"}, {"role": "replicated"}], ids=str
)
def test_heads_embeddings_and_small_layers_stay_plain(more: dict[str, Any]) -> None:
    loaded = {"weight": [torch.randn(8, INPUTS)]}
    assert quantizer(QuantContext("float32")).method(layer(loaded, **more)) is None


def test_plain_layers_of_a_coded_checkpoint_stay_plain() -> None:
    loaded = {"weight": [torch.randn(8, INPUTS)]}
    give = quantizer(QuantContext("float32", config=CONFIGS["channel"])).method
    assert give(layer(loaded)) is None


def test_what_cannot_be_served_is_refused_by_name() -> None:
    loaded, _ = stored("channel", (64, 32))
    with pytest.raises(UnsupportedError, match=r"'model.p0.weight' .* no quantization_config"):
        quantizer(QuantContext("float32")).method(layer(loaded))
    mixed = {"weight": [loaded["weight"][0], torch.zeros(32, INPUTS)]}
    with pytest.raises(UnsupportedError, match=r"several ways.*'model.p1.weight' \(F32\)"):
        method_for("channel", mixed)
    other = SourceTensor("model.w.weight", "F8_E5M2", (64, INPUTS))
    with pytest.raises(UnsupportedError, match="stored as F8_E5M2; supported is F8_E4M3"):
        method_for("channel", {"weight": [loaded["weight"][0]]}, sources=((other,),))


def test_a_layer_that_the_configuration_leaves_out_must_be_plain() -> None:
    loaded, _ = stored("channel", (64,))
    config = {**CONFIGS["channel"], "ignore": ["model.p0"]}
    with pytest.raises(CheckpointError, match=r"F8_E4M3, but .* leaves 'model.p0' out"):
        quantizer(QuantContext("float32", config=config)).method(layer(loaded))


def test_parts_with_several_schemes_are_refused() -> None:
    groups = CONFIGS["channel"]["config_groups"]
    special = {"targets": ["model.p1"], "weights": {**NUMBERS, "strategy": "tensor"}}
    config = {**CONFIGS["channel"], "config_groups": {**groups, "b": special}}
    loaded, _ = stored("channel", (64, 32))
    with pytest.raises(UnsupportedError, match="several schemes"):
        quantizer(QuantContext("float32", config=config)).method(layer(loaded))


@pytest.mark.parametrize(
    ("facts", "dtype", "expected"),
    [
        ({"platform": "cuda", "capability": (8, 9)}, "bfloat16", DeviceProducts),
        ({"platform": "cuda", "capability": (9, 0)}, "float16", DeviceProducts),
        ({"platform": "cuda", "capability": (9, 0)}, "float32", TiledProducts),
        ({"platform": "cuda", "capability": (8, 0)}, "bfloat16", TiledProducts),
        ({"platform": "cpu", "capability": "AVX2"}, "bfloat16", TiledProducts),
    ],
)
def test_the_device_decides_who_multiplies(
    facts: dict[str, Any], dtype: str, expected: type[Any]
) -> None:
    bare = LayerSpec("layers.0.x", "linear", INPUTS, (64,), "row")
    give = quantizer(QuantContext(dtype, facts)).method
    first, second = give(bare), give(bare)
    assert type(getattr(first, "_products")) is expected  # noqa: B009
    assert getattr(first, "_products") is getattr(second, "_products")  # noqa: B009


@pytest.mark.parametrize("kind", ["column", "row"])
def test_shards_begin_and_end_with_a_block(kind: Any) -> None:
    loaded, _ = stored("block", (64,))
    weight, scale = method_for("block", loaded, role=kind).parameters(0)
    axis = 0 if kind == "column" else 1
    assert (weight.shard_axis, weight.granule) == (axis, (32, 64)[axis])
    assert (scale.shard_axis, scale.granule) == (axis, 1)
