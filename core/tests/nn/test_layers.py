"""Layers with weights: what they want, what they make of it, what they compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch

from pegboard import nn as room
from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import LayerSpec, ParamSpec
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard.nn import Embedding, Head, Linear, OpTable, PlainMethod, RMSNorm, Rope, RopeConfig
from pegboard.nn.layers import Weighted

CPU = torch.device("cpu")


def context(dtype: torch.dtype = torch.float32, **changes: Any) -> BuildContext:
    ctx = BuildContext(
        config=None,
        dtype=dtype,
        device=CPU,
        ops=OpTable.plain(),
        method=lambda layer: PlainMethod(layer, dtype),
        sources=lambda prefix, parts: ((),) * parts,
    )
    return attrs.evolve(ctx, **changes)


def batch(positions: Sequence[int] = (), embeddings: torch.Tensor | None = None) -> Batch:
    places = torch.tensor(positions, dtype=torch.int64)
    return Batch(places, places, places, (), {}, embeddings=embeddings)


def test_a_linear_layer_joins_its_parts() -> None:
    layer = Linear(context(), "qkv", 4, (3, 2), "column", bias=True)
    assert layer.wanted() == (
        (0, ParamSpec("weight", (3, 4), "float32", 0)),
        (1, ParamSpec("weight", (2, 4), "float32", 0)),
        (0, ParamSpec("bias", (3,), "float32", 0)),
        (1, ParamSpec("bias", (2,), "float32", 0)),
    )
    weights, biases = [torch.randn(3, 4), torch.randn(2, 4)], [torch.randn(3), torch.randn(2)]
    layer.finalise({"weight": list(weights), "bias": list(biases)})
    x = torch.randn(6, 4)
    wanted = torch.cat([x @ w.T + b for w, b in zip(weights, biases, strict=True)], -1)
    torch.testing.assert_close(layer(x, batch()), wanted)


def test_the_bias_of_a_row_split_layer_is_whole_on_every_rank() -> None:
    layer = Linear(context(), "down", 4, (3,), "row", bias=True)
    assert [spec.shard_axis for _, spec in layer.wanted()] == [1, None]


def test_an_update_writes_into_the_same_storage() -> None:
    layer = Linear(context(), "x", 2, (1, 1), bias=True)
    layer.finalise({"weight": [torch.zeros(1, 2)] * 2, "bias": [torch.zeros(1)] * 2})
    weight, bias = layer.runtime["weight"], layer.bias
    layer.finalise({"weight": [torch.ones(1, 2)] * 2, "bias": [torch.ones(1)] * 2})
    assert layer.runtime["weight"] is weight
    assert layer.bias is bias
    assert layer(torch.ones(1, 2), batch()).tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("loaded", [{}, {"weight": []}, {"weight": [torch.ones(1, 2)] * 2}])
def test_a_wrong_delivery_is_named(loaded: dict[str, list[torch.Tensor]]) -> None:
    layer = Linear(context(), "layers.0.x", 2, (1,))
    with pytest.raises(CheckpointError, match=r"layers\.0\.x: wants tensors \{'weight': 1\}"):
        layer.finalise(loaded)
    assert not layer.loaded()


def test_a_tied_head_wants_nothing_and_uses_the_embedding() -> None:
    ctx = context()
    embed = Embedding(ctx, "embed", 5, 3, tied=True)
    head = Head(ctx, "head", 5, 3, tied=embed)
    assert embed.layer.tied
    assert head.wanted() == ()
    weight = torch.randn(5, 3)
    embed.finalise({"weight": [weight.clone()]})
    x = torch.randn(2, 3)
    torch.testing.assert_close(head(x, batch()), x @ weight.T)
    embed.finalise({"weight": [2 * weight]})
    torch.testing.assert_close(head(x, batch()), 2 * x @ weight.T)
    assert embed.runtime_bytes() == 60
    assert head.runtime_bytes() == 0


def test_a_head_of_its_own_wants_its_weights() -> None:
    head = Head(context(), "head", 5, 3)
    assert [spec.shape for _, spec in head.wanted()] == [(5, 3)]
    assert head.layer.kind == "head"
    head.finalise({"weight": [torch.eye(5, 3)]})
    assert head(torch.tensor([[1.0, 2.0, 3.0]]), batch()).tolist() == [[1, 2, 3, 0, 0]]


def test_an_embedding_gives_rows_or_what_the_batch_brings() -> None:
    embed = Embedding(context(), "embed", 4, 2)
    embed.finalise({"weight": [torch.arange(8.0).view(4, 2)]})
    ids = torch.tensor([3, 0])
    assert embed(ids, batch()).tolist() == [[6, 7], [0, 1]]
    brought = torch.full((2, 2), 9.0)
    assert embed(ids, batch(embeddings=brought)) is brought


def test_layers_compute_through_their_weight_owner_in_any_format() -> None:
    class Halved:
        """Stores integers that stand for halves."""

        def __init__(self, layer: LayerSpec) -> None:
            self.layer = layer

        def parameters(self, part: int) -> tuple[ParamSpec, ...]:
            size = self.layer.part_sizes[part]
            return (ParamSpec("codes", (size, self.layer.in_features), "int8", 0),)

        def finalise(
            self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
        ) -> Mapping[str, Any]:
            return {"codes": torch.cat(tuple(loaded["codes"]))}

        def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
            return x @ self.dequantise(params).T

        def lookup(self, params: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor:
            return self.dequantise(params)[ids]

        def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
            codes: torch.Tensor = params["codes"]
            return codes.float() / 2

    ctx = context(method=Halved)
    embed = Embedding(ctx, "embed", 2, 2, tied=True)
    head = Head(ctx, "head", 2, 2, tied=embed)
    embed.finalise({"codes": [torch.tensor([[2, 4], [6, 8]], dtype=torch.int8)]})
    assert embed(torch.tensor([1]), batch()).tolist() == [[3, 4]]
    assert head(torch.tensor([[1.0, 0.0]]), batch()).tolist() == [[1, 3]]


def test_a_plain_layer_gives_back_the_wider_dtype_that_it_was_given() -> None:
    linear = Linear(context(torch.bfloat16), "x", 4, (3,))
    weight = torch.randn(3, 4).bfloat16()
    linear.finalise({"weight": [weight]})
    x = torch.randn(2, 4)
    found = linear(x, batch())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, x @ weight.float().T, rtol=2e-2, atol=2e-2)


def test_a_norm_begins_a_residual_and_adds_to_one() -> None:
    norm = RMSNorm(context(), "norm", 4, 1e-5)
    norm.finalise({"weight": [torch.full((4,), 2.0)]})
    x, residual = torch.randn(3, 4), torch.randn(3, 4)
    normed, begun = norm.add(x, None, batch())
    assert begun is x
    assert torch.equal(normed, norm(x, batch()))
    normed, total = norm.add(x, residual, batch())
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, norm(total, batch()))


def test_a_norm_keeps_its_weight_in_the_compute_dtype() -> None:
    norm = RMSNorm(context(torch.bfloat16), "norm", 4, 1e-5)
    assert norm.wanted() == ((0, ParamSpec("weight", (4,), "bfloat16")),)


def test_rope_factors_divide_the_frequencies() -> None:
    ctx = context()
    plain = Rope(ctx, "rope", RopeConfig(), 4, 10)
    assert plain.loaded()
    factored = Rope(ctx, "rope", RopeConfig(), 4, 10, factors=True)
    assert factored.wanted() == ((0, ParamSpec("weight", (2,), "float32")),)
    assert not factored.loaded()
    factored.finalise({"weight": [torch.tensor([1.0, 4.0])]})
    angles = torch.tensor([[3.0, 3 * 0.01 / 4]])
    wanted = torch.cat((angles.cos(), angles.sin()), -1)
    torch.testing.assert_close(factored.runtime["table"][3:4], wanted)
    assert not torch.allclose(plain.runtime["table"][3:4], wanted, rtol=0, atol=1e-3)


def test_a_part_of_a_head_that_cannot_be_paired_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="3 of 6 features"):
        Rope(context(), "rope", RopeConfig(partial=0.5), 6, 10)


def test_sources_reach_the_layer_specification() -> None:
    seen = []

    def sources(prefix: str, parts: int) -> tuple[tuple[()], ...]:
        seen.append((prefix, parts))
        return ((),) * parts

    layer = Linear(context(sources=sources), "qkv", 4, (3, 2))
    assert seen == [("qkv", 2)]
    assert layer.layer.sources == ((), ())


def test_the_room_exports_one_sorted_list_that_loads() -> None:
    assert sorted(room.__all__, key=lambda name: (not name.isupper(), name)) == room.__all__
    assert all(getattr(room, name) is not None for name in room.__all__)
    assert issubclass(Linear, Weighted)
    with pytest.raises(AttributeError, match="nonsense"):
        room.nonsense  # noqa: B018


def test_a_scaled_embedding_rounds_its_scale_and_spares_given_embeddings_and_the_head() -> None:
    weight = torch.randn(7, 4)
    for dtype in (torch.float32, torch.bfloat16):
        embed = Embedding(context(dtype), "embed", 7, 4, tied=True, scale=3.0**0.5)
        embed.finalise({"weight": [weight.to(dtype)]})
        ids = torch.tensor([3, 0])
        scale = torch.tensor(3.0**0.5).to(dtype)
        assert torch.equal(embed(ids, batch()), weight.to(dtype)[ids] * scale)
        own = torch.randn(2, 4).to(dtype)
        assert embed(ids, batch(embeddings=own)) is own
        head = Head(context(dtype), "head", 7, 4, tied=embed)
        assert torch.equal(head(own, batch()), own @ weight.to(dtype).T)


def test_a_head_with_a_soft_cap_bounds_its_logits() -> None:
    head = Head(context(), "head", 3, 2, soft_cap=2.0)
    head.finalise({"weight": [torch.tensor([[100.0, 0.0], [0.0, 0.1], [0.0, 1.0]])]})
    wanted = 2 * torch.tanh(torch.tensor([[50.0, 0.05, 0.5]]))
    torch.testing.assert_close(head(torch.ones(1, 2), batch()), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_wide_norm_keeps_its_weight_in_float32_and_rounds_once(dtype: torch.dtype) -> None:
    norm = RMSNorm(context(dtype), "norm", 16, 1e-6, wide=True)
    ((_, spec),) = norm.wanted()
    assert spec.dtype == "float32"
    weight = 1 + torch.randn(16) / 256  # most bits of which bfloat16 would lose
    norm.finalise({"weight": [weight]})
    x, residual = torch.randn(5, 16).to(dtype), torch.randn(5, 16).to(dtype)
    total = x + residual
    normed, added = norm.add(x.clone(), residual, batch())
    assert torch.equal(added, total)
    for given, found in ((x, norm(x, batch())), (total, normed)):
        wide = given.float()
        exact = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight
        assert found.dtype == dtype
        torch.testing.assert_close(found, exact.to(dtype), rtol=0, atol=1e-6)
