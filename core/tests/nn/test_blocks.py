"""Blocks: a layer's parts in the right order, and the way to the cache."""

from __future__ import annotations

from typing import Any

import attrs
import torch
import torch.nn.functional as F

from pegboard.api.attention import AttentionInputs, AttentionLayer
from pegboard.api.kv import FullAttentionSpec, KVLayout, KVTensors
from pegboard.api.model import Batch, BuildContext, GroupBatch
from pegboard.nn import (
    AttentionBlock,
    AttentionShape,
    DecoderLayer,
    GatedMLP,
    NormedAfter,
    OpTable,
    PlainMethod,
    RMSNorm,
    Rope,
    RopeConfig,
    Weighted,
)

CTX = BuildContext(
    config=None,
    dtype=torch.float32,
    device=torch.device("cpu"),
    ops=OpTable.plain(),
    method=lambda layer: PlainMethod(layer, torch.float32),
    sources=lambda prefix, parts: (),
)


@attrs.frozen(eq=False)
class Recorder:
    """A kernel that returns twice the query and remembers what it was given."""

    calls: list[tuple[Any, ...]] = attrs.field(factory=list)

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        self.calls.append((layer, inputs, kv, metadata))
        return 2 * inputs.query


def filled(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Random weights for every leaf; gives them by ``prefix.part``."""
    given = {}
    for leaf in module.modules():
        if not isinstance(leaf, Weighted) or not leaf.wanted():
            continue
        loaded: dict[str, list[torch.Tensor]] = {}
        for part, spec in leaf.wanted():
            tensor = torch.randn(spec.shape)
            given[f"{leaf.prefix}.{part}.{spec.name}"] = tensor.clone()
            loaded.setdefault(spec.name, []).append(tensor)
        leaf.finalise(loaded)
    return given


def cached(*kernels: Recorder) -> Batch:
    """Two groups; slot ``3.self`` belongs to the second."""
    spec = FullAttentionSpec(1, 4, "float32")
    layout = KVLayout("plain", ("kv", "block", "token", "head", "dim"))
    kv = {"3.self": KVTensors("3.self", 1, spec, layout, torch.zeros(2, 1, 1, 1, 4))}
    groups = [GroupBatch(kernel, f"plan {number}") for number, kernel in enumerate(kernels)]
    positions = torch.tensor([0, 1, 2])
    return Batch(positions, positions, positions, groups, kv)


def test_attention_finds_group_and_storage_by_its_slot() -> None:
    kernels = Recorder(), Recorder()
    batch = cached(*kernels)
    rope = Rope(CTX, "rope", RopeConfig(), 4, 8)
    block = AttentionBlock(CTX, "attn", AttentionShape(6, 2, 1, 4), rope, "3.self")
    weights = filled(block)
    x = torch.randn(3, 6)
    found = block(x, batch)
    assert not kernels[0].calls
    ((layer, inputs, kv, metadata),) = kernels[1].calls
    assert (kv.key, metadata) == ("3.self", "plan 1")
    assert (layer.heads, layer.kv_heads, layer.head_size, layer.scale) == (2, 1, 4, 0.5)
    query = rope((x @ weights["attn.qkv.0.weight"].T).view(3, 2, 4), batch)
    key = rope((x @ weights["attn.qkv.1.weight"].T).view(3, 1, 4), batch)
    torch.testing.assert_close(inputs.query, query)
    torch.testing.assert_close(inputs.key, key)
    value = (x @ weights["attn.qkv.2.weight"].T).view(3, 1, 4)
    torch.testing.assert_close(inputs.value, value)
    wanted = (2 * query).flatten(1) @ weights["attn.out.0.weight"].T
    torch.testing.assert_close(found, wanted)


def test_a_scale_of_the_family_replaces_the_usual_one() -> None:
    rope = Rope(CTX, "rope", RopeConfig(), 4, 8)
    shape = AttentionShape(6, 2, 1, 4, scale=0.125)
    block = AttentionBlock(CTX, "attn", shape, rope, "3.self")
    assert block.attention.layer.scale == 0.125


def test_a_gated_mlp_is_its_formula() -> None:
    mlp = GatedMLP(CTX, "mlp", 6, 5, bias=True)
    w = filled(mlp)
    x = torch.randn(3, 6)
    gate = F.linear(x, w["mlp.gate_up.0.weight"], w["mlp.gate_up.0.bias"])
    up = F.linear(x, w["mlp.gate_up.1.weight"], w["mlp.gate_up.1.bias"])
    wanted = F.linear(F.silu(gate) * up, w["mlp.down.0.weight"], w["mlp.down.0.bias"])
    torch.testing.assert_close(mlp(x, cached()), wanted)


def test_a_decoder_layer_adds_each_half_to_the_residual() -> None:
    rope = Rope(CTX, "rope", RopeConfig(), 4, 8)
    layer = DecoderLayer(
        RMSNorm(CTX, "n1", 6, 1e-5),
        AttentionBlock(CTX, "attn", AttentionShape(6, 2, 1, 4), rope, "3.self"),
        RMSNorm(CTX, "n2", 6, 1e-5),
        GatedMLP(CTX, "mlp", 6, 5),
    )
    filled(layer)
    batch = cached(Recorder(), Recorder())
    start = torch.randn(3, 6)
    middle = start + layer.attention(layer.attention_norm(start, batch), batch)
    wanted = middle + layer.mlp(layer.mlp_norm(middle, batch), batch)
    x, residual = layer(start, None, batch)
    torch.testing.assert_close(x + residual, wanted)
    half = start / 4
    x, residual = layer(half, start - half, batch)
    torch.testing.assert_close(x + residual, wanted)


def normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def test_heads_of_queries_and_keys_are_normed_before_they_turn() -> None:
    shape = AttentionShape(8, 2, 1, 4, soft_cap=7.0, qk_norm_eps=1e-3)
    rope = Rope(CTX, "rope", RopeConfig(), 4, 16)
    block = AttentionBlock(CTX, "a", shape, rope, "3.self")
    weights = filled(block)
    kernel, x = Recorder(), torch.randn(3, 8)
    block(x, cached(Recorder(), kernel))
    ((layer, inputs, _, _),) = kernel.calls
    assert layer.soft_cap == 7.0
    parts = [x @ weights[f"a.qkv.{part}.weight"].T for part in range(3)]
    query, key, value = (part.unflatten(-1, (-1, 4)) for part in parts)
    batch = cached(kernel)
    wanted_query = rope(normed(query, weights["a.q_norm.0.weight"], 1e-3), batch)
    wanted_key = rope(normed(key, weights["a.k_norm.0.weight"], 1e-3), batch)
    torch.testing.assert_close(inputs.query, wanted_query)
    torch.testing.assert_close(inputs.key, wanted_key)
    torch.testing.assert_close(inputs.value, value)


def test_a_half_that_is_normed_after_is() -> None:
    block = NormedAfter(
        GatedMLP(CTX, "mlp", 4, 6, activation="gelu_tanh"),
        RMSNorm(CTX, "after", 4, 1e-3, wide=True),
    )
    weights, x = filled(block), torch.randn(5, 4)
    gate, up = (x @ weights[f"mlp.gate_up.{part}.weight"].T for part in (0, 1))
    inner = (F.gelu(gate, approximate="tanh") * up) @ weights["mlp.down.0.weight"].T
    wanted = normed(inner, weights["after.0.weight"], 1e-3)
    torch.testing.assert_close(block(x, cached()), wanted)
