"""Keys and values as 8-bit floats: what the plain ops store, the scales that layers give them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionInputs
from pegboard.api.kv import FullAttentionSpec, KVLayout, KVTensors
from pegboard.api.model import Batch, BuildContext, GroupBatch
from pegboard.api.quant import SourceTensor
from pegboard.nn import Attention, CacheScales, OpTable, PlainMethod, cache_scale_rules
from pegboard.nn.cache_ops import paged_view, store_kv

LAYOUT = KVLayout("pages", ("block", "kv", "head", "token", "dim"))
CTX = BuildContext(
    config=None,
    dtype=torch.float32,
    device=torch.device("cpu"),
    ops=OpTable.plain(),
    method=lambda layer: PlainMethod(layer, torch.float32),
    sources=lambda prefix, parts: (),
)


def cache(dtype: str) -> KVTensors:
    spec = FullAttentionSpec(2, 8, dtype)
    data = torch.zeros(LAYOUT.shape(spec, 3, 4)).to(getattr(torch, dtype))
    return KVTensors("0.self", 0, spec, LAYOUT, data)


def numbers() -> list[float]:
    """Every finite number of the format, computed from its definition: a sign, four bits of
    exponent with a bias of 7, three of mantissa; the largest code is not a number."""
    positive = [
        (m / 8 if e == 0 else 1 + m / 8) * 2.0 ** (max(e, 1) - 7)
        for e in range(16)
        for m in range(8)
        if (e, m) != (15, 7)
    ]
    return sorted({*positive, *(-number for number in positive)})


@pytest.mark.parametrize("scale", [1.0, 0.037, 12.0])
def test_a_stored_number_is_the_nearest_one_of_the_format_times_the_scale(scale: float) -> None:
    kv, slots = cache("float8_e4m3fn"), torch.tensor([4, -1, 11])
    key = torch.randn(3, 2, 8) * torch.logspace(-4, 3.5, 8) * scale
    scales = (torch.tensor(scale), torch.tensor(1.0))
    store_kv(key, key, kv, slots, scales)
    table = torch.tensor(numbers(), dtype=torch.float64)
    for side, factor in enumerate((scale, 1.0)):
        for row, (block, offset) in ((0, (1, 0)), (2, (2, 3))):
            wanted = key[row].double() / factor
            nearest = (wanted[..., None] - table).abs().amin(-1)
            found = paged_view(kv)[side, block, offset].double()
            torch.testing.assert_close((found - wanted).abs(), nearest, rtol=1e-5, atol=1e-5)
    assert paged_view(kv).double().abs().max() == 448.0, "nothing was cut off"
    assert not paged_view(kv)[:, 0].double().any()


def test_other_caches_hold_numbers_as_they_are() -> None:
    kv, key = cache("float32"), torch.randn(1, 2, 8)
    scales = (torch.tensor(3.0), torch.tensor(5.0))
    store_kv(key, key, kv, torch.tensor([2]), scales)
    assert torch.equal(paged_view(kv)[0, 0, 2], key[0])
    assert torch.equal(paged_view(kv)[1, 0, 2], key[0])


def stored(prefix: str, parts: int) -> tuple[tuple[SourceTensor, ...], ...]:
    """Sources of a layer: part 0 finds the scales and a weight, part 1 the scales."""
    assert (prefix, parts) == ("layers.0.cache", 2)
    scales = tuple(SourceTensor(f"attn.{name}", "F32", (1,)) for name in ("k_scale", "v_scale"))
    return ((*scales, SourceTensor("attn.k_proj.weight", "F32", (4, 4))), scales)


def test_a_layer_wants_the_scales_that_are_stored_and_has_one_where_none_are() -> None:
    leaf = CacheScales(attrs.evolve(CTX, sources=stored), "layers.0.cache")
    wanted = [(part, spec.name, spec.shape) for part, spec in leaf.wanted()]
    assert wanted == [(0, "k_scale", (1,)), (1, "v_scale", (1,))]
    before = leaf.scales
    leaf.finalise({"k_scale": [torch.tensor([0.5])], "v_scale": [torch.tensor([0.25])]})
    assert [float(scale) for scale in before] == [0.5, 0.25], "kernels hold these tensors"
    bare = CacheScales(CTX, "layers.0.cache")
    assert bare.wanted() == () and bare.loaded()
    assert [float(scale) for scale in bare.scales] == [1.0, 1.0]


@attrs.frozen(eq=False)
class Silent:
    """A kernel that leaves storing to the layer."""

    def forward(self, layer: object, inputs: AttentionInputs, *rest: object) -> torch.Tensor:
        return inputs.query


def test_a_layer_stores_with_its_scales() -> None:
    attention = Attention(
        attrs.evolve(CTX, sources=stored), "0.self", 2, 2, 8, prefix="layers.0.cache"
    )
    assert attention.cache is not None
    attention.cache.finalise({"k_scale": [torch.tensor([0.5])], "v_scale": [torch.tensor([4.0])]})
    assert attention.layer.k_scale is attention.cache.scales[0]
    assert attention.layer.v_scale is attention.cache.scales[1]
    kv, slots, ones = cache("float8_e4m3fn"), torch.tensor([1]), torch.ones(1, 2, 8)
    kernel: Any = Silent()
    group = GroupBatch(kernel, None, slots)
    batch = Batch(slots, slots, slots, (group,), {"0.self": kv})
    attention(AttentionInputs(ones, ones, ones), batch)
    assert paged_view(kv)[0, 0, 1].double().unique().tolist() == [2.0]
    assert paged_view(kv)[1, 0, 1].double().unique().tolist() == [0.25]


def test_rules_name_both_places_where_checkpoints_keep_scales() -> None:
    rules = cache_scale_rules("model.layers.{i}.self_attn", "layers.{i}.attention.cache")
    sources = {part: {rule.source for rule in rules if rule.part == part} for part in (0, 1)}
    assert all("model.layers.{i}.self_attn" in found for found in sources.values())
    assert "model.layers.{i}.self_attn.k_proj" in sources[0] - sources[1]
    assert "model.layers.{i}.self_attn.v_proj" in sources[1] - sources[0]
