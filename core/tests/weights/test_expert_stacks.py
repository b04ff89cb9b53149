"""Experts of a mixture: from a tensor for each, or from one for all, to their place in a stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from pegboard.api.model import Parallel, WeightMap, WeightRule
from pegboard.api.quant import ParamSpec
from pegboard.errors import CheckpointError, PluginError
from pegboard.weights import ResolvedWeights, load_weights, loader

CPU = torch.device("cpu")
EXPERTS, ROWS, WIDTH = 3, 4, 6
SPEC = ParamSpec("weight", (EXPERTS, ROWS, WIDTH), "float32", 1, stacked=True)
EACH = WeightMap((WeightRule("layers.{i}.experts.{e}.up", "layers.{i}.moe", 0, experts=EXPERTS),))
ALL = WeightMap((WeightRule("blk.{i}.up_exps", "layers.{i}.moe"),))


def each(layers: int = 1, experts: int = EXPERTS) -> dict[str, torch.Tensor]:
    return {
        f"layers.{i}.experts.{e}.up.weight": torch.randn(ROWS, WIDTH)
        for i in range(layers)
        for e in range(experts)
    }


def load(toys: Any, names: WeightMap, stored: Any, **options: Any) -> Any:
    """Load one layer; gives its leaf."""
    model = toys.model(("layers.0.moe", [(0, options.pop("spec", SPEC))]))
    load_weights(model, ResolvedWeights(names, toys.checkpoint(stored), 1), CPU, **options)
    return model[0]


def test_each_expert_goes_to_its_own_place(toys: Any) -> None:
    stored = each()
    names = list(stored)
    shuffled = {name: stored[name] for name in (names[2], names[0], names[1])}
    (stack,) = load(toys, EACH, shuffled).runtime["weight"]
    assert torch.equal(stack, torch.stack(list(stored.values())))


def test_a_stack_that_is_stored_whole_is_read_in_tiles(
    toys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_TILE_BYTES", 1)
    data = torch.randn(EXPERTS, ROWS, WIDTH).double()
    tensor = toys.tensor("blk.0.up_exps.weight", data, "F64", tuple(data.shape))
    (stack,) = load(toys, ALL, {tensor.name: tensor}).runtime["weight"]
    assert torch.equal(stack, data.float())
    assert tensor.reads == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("axis", [1, 2])
def test_the_shards_of_all_ranks_make_the_whole(whole: bool, axis: int, toys: Any) -> None:
    stored = each()
    data = torch.stack(list(stored.values()))
    names = ALL if whole else EACH
    given = {"blk.0.up_exps.weight": data} if whole else stored
    spec = ParamSpec("weight", (EXPERTS, ROWS, WIDTH), "float32", axis, stacked=True)
    parts = [
        load(toys, names, given, spec=spec, parallel=Parallel(rank, 2)).runtime["weight"][0]
        for rank in range(2)
    ]
    assert torch.equal(torch.cat(parts, axis), data)


def test_scalars_of_experts_become_a_vector(toys: Any) -> None:
    stored = {f"layers.0.experts.{e}.up.scale": torch.tensor(e + 0.5) for e in range(EXPERTS)}
    spec = ParamSpec("scale", (EXPERTS,), "float32", stacked=True)
    (scales,) = load(toys, EACH, stored, spec=spec).runtime["scale"]
    assert scales.tolist() == [0.5, 1.5, 2.5]


def placed_leaf(toys: Any, place: torch.Tensor) -> Any:
    """A layer that has a place for its stack."""

    class Placed(toys.leaf):  # type: ignore[misc]
        def place(self, part: int, name: str, device: torch.device) -> torch.Tensor:
            return place

        def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
            self.runtime = {"weight": loaded["weight"][0]}

    return torch.nn.ModuleList([Placed("layers.0.moe", [(0, SPEC)])])


@pytest.mark.parametrize("whole", [False, True])
def test_a_layer_with_a_place_has_its_tensors_written_there(whole: bool, toys: Any) -> None:
    stored = each()
    data = torch.stack(list(stored.values()))
    place = torch.zeros(EXPERTS, 2 * ROWS, WIDTH)[:, ROWS:]
    model = placed_leaf(toys, place)
    given = {"blk.0.up_exps.weight": data} if whole else stored
    load_weights(model, ResolvedWeights(ALL if whole else EACH, toys.checkpoint(given), 1), CPU)
    assert model[0].runtime["weight"].data_ptr() == place.data_ptr()
    assert torch.equal(place, data)


@pytest.mark.parametrize(
    "place", [torch.zeros(EXPERTS, ROWS, 5), torch.zeros(EXPERTS, ROWS, WIDTH).half()]
)
def test_a_place_of_another_shape_or_dtype_is_a_fault_of_the_method(
    place: torch.Tensor, toys: Any
) -> None:
    resolved = ResolvedWeights(EACH, toys.checkpoint(each()), 1)
    with pytest.raises(PluginError, match=r"layers\.0\.moe: the place for 'weight' of part 0"):
        load_weights(placed_leaf(toys, place), resolved, CPU)


def test_experts_that_are_missing_left_over_or_misshapen_are_named(toys: Any) -> None:
    stored = each(experts=4)
    del stored["layers.0.experts.1.up.weight"]
    stored["layers.0.experts.2.up.weight"] = torch.zeros(ROWS, 5)
    with pytest.raises(CheckpointError) as caught:
        load(toys, EACH, stored)
    said = str(caught.value)
    assert "1 tensor missing: 'layers.0.experts.1.up.weight' (for layers.0.moe.weight)" in said
    assert "'layers.0.experts.2.up.weight' has shape [4, 5], wanted is [4, 6]" in said
    assert "is of expert 3, but the configuration has 3 experts" in said


def test_an_expert_of_a_layer_too_many_is_named(toys: Any) -> None:
    with pytest.raises(CheckpointError, match="is of layer 1, but the configuration has 1 layers"):
        load(toys, EACH, each(layers=2))


def test_both_forms_may_be_named_but_only_one_stored(toys: Any) -> None:
    both = WeightMap((*EACH.rules, *ALL.rules))
    stored = each()
    data = torch.stack(list(stored.values()))
    for given in (stored, {"blk.0.up_exps.weight": data}):
        assert torch.equal(load(toys, both, given).runtime["weight"][0], data)
    with pytest.raises(CheckpointError, match="3 tensors not expected"):
        load(toys, both, stored | {"blk.0.up_exps.weight": data})


def test_the_sources_of_a_layer_are_those_of_all_experts_in_order(toys: Any) -> None:
    resolved = ResolvedWeights(EACH, toys.checkpoint(dict(reversed(each().items()))), 1)
    ((*sources,),) = resolved.sources("layers.0.moe", 1)
    assert [source.name for source in sources] == list(each())


@pytest.mark.parametrize(
    "rule",
    [
        WeightRule("experts.{e}.up", "moe"),
        WeightRule("experts.up", "moe", experts=3),
        WeightRule("experts.{e}.up", "moe.{e}", experts=3),
    ],
)
def test_a_rule_whose_experts_are_not_clear_is_refused(rule: WeightRule, toys: Any) -> None:
    with pytest.raises(PluginError, match=r"'\{e\}' must be in the source"):
        ResolvedWeights(WeightMap((rule,)), toys.checkpoint({}), 1)


def test_random_experts_differ_and_are_the_same_for_any_number_of_ranks(toys: Any) -> None:
    models = [toys.model(("moe", [(0, SPEC)])) for _ in range(3)]
    loader.fill_dummy(models[0], CPU)
    for rank in range(2):
        loader.fill_dummy(models[1 + rank], CPU, parallel=Parallel(rank, 2))
    (whole,) = models[0][0].runtime["weight"]
    halves = [model[0].runtime["weight"][0] for model in models[1:]]
    assert torch.equal(torch.cat(halves, 1), whole)
    assert not torch.equal(whole[0], whole[1])
    assert 5e-4 < whole.abs().max() <= 1e-3


@pytest.mark.gpu
def test_random_weights_are_drawn_on_the_device_in_their_own_dtype(toys: Any) -> None:
    device = torch.device("cuda")
    wanted = [
        (0, SPEC),
        (1, ParamSpec("weight", (64, 8), "bfloat16", 0)),
        (2, ParamSpec("weight", (4,), "int32")),
    ]
    models = [toys.model(("moe", wanted)) for _ in range(4)]
    for model in models[:2]:
        loader.fill_dummy(model, device)
    for rank in range(2):
        loader.fill_dummy(models[2 + rank], device, parallel=Parallel(rank, 2))
    first, again, *halves = (model[0].runtime["weight"] for model in models)
    for part, axis in ((0, 1), (1, 0)):
        assert first[part].device.type == "cuda"
        assert torch.equal(first[part], again[part])
        assert torch.equal(torch.cat([half[part] for half in halves], axis), first[part])
        assert 5e-4 < first[part].abs().max() <= 1.01e-3
    assert not first[2].any()
