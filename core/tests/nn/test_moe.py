"""Mixtures of experts: routing, the sum over experts, the block and its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
import torch.nn.functional as F

from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import LayerSpec, ParamSpec
from pegboard.errors import CheckpointError
from pegboard.nn import OPS, Experts, MoE, OpTable, PlainExperts, Weighted, plain_method

CPU = torch.device("cpu")
HIDDEN, INNER, EXPERTS, TOP = 12, 10, 6, 3
route, experts = OPS["moe_route"].plain, OPS["moe_experts"].plain


def context(dtype: torch.dtype = torch.float32, **changes: Any) -> BuildContext:
    ctx = BuildContext(
        config=None,
        dtype=dtype,
        device=CPU,
        ops=OpTable.plain(),
        method=lambda layer: plain_method(layer, dtype, OpTable.plain()),
        sources=lambda prefix, parts: ((),) * parts,
    )
    return attrs.evolve(ctx, **changes)


def batch(tokens: int, **taps: torch.Tensor) -> Batch:
    places = torch.arange(tokens)
    return Batch(places, places, places, (), {}, taps=taps)


def fill(model: torch.nn.Module) -> dict[tuple[str, int], torch.Tensor]:
    """Draw every weight; gives them by leaf and part."""
    drawn: dict[tuple[str, int], torch.Tensor] = {}
    for leaf in model.modules():
        if not isinstance(leaf, Weighted):
            continue
        loaded = []
        for part, spec in leaf.wanted():
            drawn[leaf.prefix, part] = torch.randn(spec.shape).to(getattr(torch, spec.dtype))
            loaded.append(drawn[leaf.prefix, part].clone())
        leaf.finalise({"weight": loaded})
    return drawn


def by_definition(
    x: torch.Tensor, weights: Mapping[tuple[str, int], torch.Tensor], renormalise: bool
) -> torch.Tensor:
    """Token by token, choice by choice, in float64."""
    gate, up, down = (weights["m.experts", part].double() for part in range(3))
    rows = []
    for row in x.double():
        shares = torch.softmax(weights["m.router", 0].double() @ row, -1)
        chosen = sorted(range(EXPERTS), key=lambda e: -float(shares[e]))[:TOP]
        total = sum(float(shares[e]) for e in chosen) if renormalise else 1.0
        parts = [
            shares[e] / total * (down[e] @ (F.silu(gate[e] @ row) * (up[e] @ row))) for e in chosen
        ]
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


def test_a_route_names_the_likeliest_experts_and_their_shares() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0], [5.0, 5.0, -1.0, 6.0]])
    weights, ids = route(logits, 2, False)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    assert ids.tolist() == [[1, 3], [3, 0]]
    shares = torch.softmax(logits, -1)
    torch.testing.assert_close(weights, shares.gather(1, ids.long()))
    renormalised, same = route(logits, 2, True)
    assert torch.equal(ids, same)
    torch.testing.assert_close(renormalised, weights / weights.sum(1, keepdim=True))


@pytest.mark.parametrize("count", [4, 128, 1000])
def test_of_equal_experts_those_with_the_lowest_ids_are_chosen(count: int) -> None:
    logits = torch.zeros(3, count)
    logits[1, 3] = 1.0
    logits[2, 1:] = -0.5
    _, ids = route(logits, 3, True)
    assert ids.tolist() == [[0, 1, 2], [3, 0, 1], [0, 1, 2]]


def test_a_route_is_computed_in_float32() -> None:
    logits = torch.tensor([[0.0, 0.001, -0.002]], dtype=torch.bfloat16)
    weights, _ = route(logits, 3, False)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0))
    assert len(set(weights[0].tolist())) == 3


def test_a_gate_joins_the_product_and_the_route() -> None:
    x, weight = torch.randn(5, HIDDEN), torch.randn(EXPERTS, HIDDEN)
    weights, ids = OPS["moe_gate"].plain(x, weight, TOP, True)
    wanted, order = route(x @ weight.T, TOP, True)
    assert torch.equal(ids, order)
    torch.testing.assert_close(weights, wanted)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_experts_agree_with_the_definition(activation: str) -> None:
    gate_up, down = torch.randn(4, 10, 6), torch.randn(4, 6, 5)
    x, weights = torch.randn(7, 6), torch.rand(7, 2)
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(7)]).int()
    act = F.silu if activation == "silu" else (lambda v: F.gelu(v, approximate="tanh"))
    wanted = torch.zeros(7, 6, dtype=torch.float64)
    for token in range(7):
        for weight, expert in zip(weights[token], ids[token].tolist(), strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            wanted[token] += weight.double() * (down[expert].double() @ (act(gate) * up))
    found = experts(x, gate_up, down, weights, ids, activation)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tokens_give_no_rows(dtype: torch.dtype) -> None:
    weights, ids = route(torch.zeros(0, 5), 2, True)
    assert weights.shape == ids.shape == (0, 2)
    x = torch.zeros(0, 6, dtype=dtype)
    found = experts(x, torch.zeros(5, 8, 6), torch.zeros(5, 6, 4), weights, ids, "silu")
    assert (found.shape, found.dtype) == ((0, 6), dtype)


def test_the_sum_over_experts_is_rounded_once() -> None:
    """Eight equal parts whose running sum in bfloat16 would lose the small ones."""
    down = torch.zeros(9, 1, 1, dtype=torch.bfloat16)
    down[0], down[1:] = 256.0, 1.0
    gate_up = torch.ones(9, 2, 1, dtype=torch.bfloat16)
    x = torch.tensor([[20.0]], dtype=torch.bfloat16)
    weights = torch.full((1, 9), 1 / 400)
    found = experts(x, gate_up, down, weights, torch.arange(9).int()[None], "silu")
    assert found.item() == torch.tensor(264.0).to(torch.bfloat16).item()


@pytest.mark.parametrize("renormalise", [False, True])
def test_a_block_sends_each_token_to_its_experts(renormalise: bool) -> None:
    torch.manual_seed(1)
    block = MoE(context(), "m", HIDDEN, INNER, EXPERTS, TOP, renormalise, layer=0)
    weights = fill(block)
    x = torch.randn(9, HIDDEN)
    wanted = by_definition(x, weights, renormalise)
    torch.testing.assert_close(block(x, batch(9)).double(), wanted, rtol=1e-4, atol=1e-4)


def test_a_shared_expert_is_added_through_its_gate() -> None:
    torch.manual_seed(2)
    block = MoE(context(), "m", HIDDEN, INNER, EXPERTS, TOP, True, layer=0, shared_size=7)
    weights = fill(block)
    x = torch.randn(5, HIDDEN)
    gate, up = weights["m.shared.gate_up", 0], weights["m.shared.gate_up", 1]
    shared = (F.silu(x @ gate.T) * (x @ up.T)) @ weights["m.shared.down", 0].T
    opened = torch.sigmoid(x @ weights["m.shared_gate", 0].T)
    wanted = by_definition(x, weights, True) + (opened * shared).double()
    torch.testing.assert_close(block(x, batch(5)).double(), wanted, rtol=1e-4, atol=1e-4)


def test_the_experts_of_each_token_are_told_on_request() -> None:
    block = MoE(context(), "m", HIDDEN, INNER, EXPERTS, TOP, True, layer=1)
    weights = fill(block)
    x = torch.randn(4, HIDDEN)
    tap = torch.full((3, 6, TOP), -1, dtype=torch.int32)
    block(x, batch(4, routed_experts=tap))
    shares = x @ weights["m.router", 0].T
    assert torch.equal(tap[1, :4].long(), shares.topk(TOP).indices)
    assert (tap[0] == -1).all() and (tap[2] == -1).all() and (tap[1, 4:] == -1).all()


class Hidden:
    """The weight owner of another number format: what it holds is its own matter."""

    def __init__(self, inner: Any) -> None:
        self.parameters, self.finalise, self.apply = inner.parameters, inner.finalise, inner.apply


@pytest.mark.parametrize(
    ("joined", "plain_router", "wanted"),
    [
        ("watched", True, ["moe_gate", "moe_experts"]),
        ("plain", True, ["linear", "moe_route", "moe_experts"]),
        ("watched", False, ["linear", "moe_route", "moe_experts"]),
    ],
)
def test_the_block_uses_the_versions_of_the_op_table(
    joined: str, plain_router: bool, wanted: list[str]
) -> None:
    calls: list[str] = []

    def watched(name: str) -> Any:
        def call(*args: Any) -> Any:
            calls.append(name)
            return OPS[name].plain(*args)

        return call

    choices = {**dict.fromkeys(OPS, "watched"), "moe_gate": joined}
    ops = OpTable({name: watched(name) for name in OPS}, choices)

    def method(layer: LayerSpec) -> Any:
        made = plain_method(layer, torch.float32, ops)
        return made if plain_router or layer.kind == "experts" else Hidden(made)

    block = MoE(context(ops=ops, method=method), "m", HIDDEN, INNER, EXPERTS, TOP, True, layer=0)
    weights = fill(block)
    x = torch.randn(2, HIDDEN)
    found = block(x, batch(2))
    assert calls == wanted
    torch.testing.assert_close(
        found.double(), by_definition(x, weights, True), rtol=1e-4, atol=1e-4
    )


def test_experts_are_one_weight_owner() -> None:
    seen: list[LayerSpec] = []

    def method(layer: LayerSpec) -> Any:
        seen.append(layer)
        return plain_method(layer, torch.bfloat16, OpTable.plain())

    leaf = Experts(context(method=method), "m.experts", HIDDEN, INNER, EXPERTS)
    (layer,) = seen
    assert (layer.kind, layer.experts, layer.activation) == ("experts", EXPERTS, "silu")
    assert (layer.in_features, layer.part_sizes) == (HIDDEN, (INNER, INNER, HIDDEN))
    first = ParamSpec("weight", (EXPERTS, INNER, HIDDEN), "bfloat16", 1, stacked=True)
    last = ParamSpec("weight", (EXPERTS, HIDDEN, INNER), "bfloat16", 2, stacked=True)
    assert leaf.wanted() == ((0, first), (1, first), (2, last))
    fill(leaf)
    assert leaf.runtime_bytes() == 2 * 3 * EXPERTS * HIDDEN * INNER


def test_what_lies_in_its_place_is_not_copied() -> None:
    leaf = Experts(context(), "m", HIDDEN, INNER, EXPERTS)
    places = [leaf.place(part, "weight", CPU) for part in range(3)]
    assert not leaf.loaded()
    for number, place in enumerate(places):
        assert place is not None
        place.fill_(number + 1.0)
    leaf.finalise({"weight": [place for place in places if place is not None]})
    assert leaf.loaded()
    assert leaf.runtime["gate_up"].data_ptr() == places[0].data_ptr()  # type: ignore[union-attr]
    assert leaf.runtime["down"].data_ptr() == places[2].data_ptr()  # type: ignore[union-attr]
    gate, up = leaf.runtime["gate_up"].chunk(2, 1)
    assert (gate == 1).all() and (up == 2).all() and (leaf.runtime["down"] == 3).all()


def test_an_update_writes_into_the_same_storage() -> None:
    leaf = Experts(context(), "m", HIDDEN, INNER, EXPERTS)
    fill(leaf)
    before = {name: tensor.data_ptr() for name, tensor in leaf.runtime.items()}
    place = leaf.place(0, "weight", CPU)
    assert place is not None and place.data_ptr() == before["gate_up"]
    weights = fill(leaf)
    assert {name: tensor.data_ptr() for name, tensor in leaf.runtime.items()} == before
    assert torch.equal(leaf.runtime["down"], weights["m", 2])
    assert torch.equal(leaf.runtime["gate_up"], torch.cat((weights["m", 0], weights["m", 1]), 1))


def test_dequantised_experts_compute_what_apply_does() -> None:
    layer = LayerSpec(
        "m", "experts", HIDDEN, (INNER, INNER, HIDDEN), experts=EXPERTS, activation="silu"
    )
    method = PlainExperts(layer, torch.bfloat16)
    parts = [
        torch.randn(spec.shape).bfloat16() for part in range(3) for spec in method.parameters(part)
    ]
    params = method.finalise({"weight": parts}, None)
    weights, ids = route(torch.randn(4, EXPERTS), TOP, True)
    x = torch.randn(4, HIDDEN)
    found = method.apply(params, x.bfloat16(), weights, ids)
    wanted = experts(x.bfloat16().float(), *method.dequantise(params), weights, ids, "silu")
    torch.testing.assert_close(found.float(), wanted, rtol=5e-2, atol=5e-1)


def test_a_missing_part_is_refused() -> None:
    leaf = Experts(context(), "m", HIDDEN, INNER, EXPERTS)
    with pytest.raises(CheckpointError, match="m: wants tensors"):
        leaf.finalise({"weight": [torch.zeros(EXPERTS, INNER, HIDDEN)] * 2})
