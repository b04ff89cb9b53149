from __future__ import annotations

from typing import Any

import pytest
import torch

from pegboard.api.model import RowOrder, Skip, WeightMap, WeightRule
from pegboard.errors import CheckpointError, PluginError
from pegboard.weights import ResolvedWeights

MAP = WeightMap(
    rules=(
        WeightRule("model.layers.{i}.q", "layers.{i}.qkv", 0),
        WeightRule("model.layers.{i}.k", "layers.{i}.qkv", 1),
        WeightRule("model.embed", "embed"),
        WeightRule("old.embed", "embed"),
    ),
    skips=(Skip("*.inv_freq", "computed from the configuration"),),
)


def resolve(
    toys: Any, *names: str, layers: int = 12, weight_map: WeightMap = MAP
) -> ResolvedWeights:
    return ResolvedWeights(
        weight_map, toys.checkpoint(dict.fromkeys(names, torch.ones(2, 2))), layers
    )


def test_layer_numbers_are_filled_in_on_both_sides(toys: Any) -> None:
    resolved = resolve(
        toys, "model.layers.11.q.weight", "model.layers.1.q.weight", "model.layers.1.k.bias"
    )
    found = resolved.find("layers.11.qkv", 0, "weight")
    assert found is not None
    assert found.tensor.name == "model.layers.11.q.weight"
    assert resolved.find("layers.1.qkv", 1, "weight") is None
    assert resolved.find("layers.12.qkv", 0, "weight") is None
    assert resolved.find("nothing", 0, "weight") is None


def test_the_sources_of_a_layer_are_listed_per_part(toys: Any) -> None:
    resolved = resolve(
        toys, "model.layers.3.q.weight", "model.layers.3.q.bias", "model.layers.3.k.weight"
    )
    names = [[s.name for s in part] for part in resolved.sources("layers.3.qkv", 3)]
    assert names == [
        ["model.layers.3.q.bias", "model.layers.3.q.weight"],
        ["model.layers.3.k.weight"],
        [],
    ]
    assert resolved.sources("layers.3.qkv", 1)[0][1].stored_type == "F32"
    assert resolved.sources("layers.3.qkv", 1)[0][1].shape == (2, 2)


def test_spellings_of_different_times_may_name_one_part_but_not_both_at_once(toys: Any) -> None:
    found = resolve(toys, "old.embed.weight").find("embed", 0, "weight")
    assert found is not None
    assert found.tensor.name == "old.embed.weight"
    both = resolve(toys, "old.embed.weight", "model.embed.weight")
    with pytest.raises(CheckpointError, match=r"'model\.embed\.weight' and 'old\.embed\.weight'"):
        both.find("embed", 0, "weight")


def test_a_row_order_comes_with_what_is_found(toys: Any, even_first: RowOrder) -> None:
    weight_map = WeightMap((WeightRule("a", "b", row_order=even_first),))
    found = resolve(toys, "a.weight", weight_map=weight_map).find("b", 0, "weight")
    assert found is not None
    assert found.row_order is even_first


def test_leftovers_are_explained_one_by_one(toys: Any) -> None:
    names = (
        "model.layers.1.q.weight",
        "model.layers.1.q.bias",
        "model.layers.12.q.weight",
        "model.layers.3.inv_freq",
        "vision.patch.weight",
        "lonely",
    )
    resolved = resolve(toys, *names)
    used = {"model.layers.1.q.weight"}
    left = resolved.unexpected(used)
    assert len(left) == 4
    assert "'model.layers.1.q.bias'" in left[0]
    assert "no place in this configuration" in left[0]
    assert "layer 12, but the configuration has 12 layers" in left[1]
    assert "'vision.patch.weight'" in left[2]
    assert "unknown to the model" in left[2]
    assert "'lonely'" in left[3]
    assert resolved.skipped(used) == {"model.layers.3.inv_freq": "computed from the configuration"}


def test_what_is_used_is_not_skipped(toys: Any) -> None:
    resolved = resolve(toys, "model.layers.3.inv_freq")
    assert resolved.skipped({"model.layers.3.inv_freq"}) == {}


@pytest.mark.parametrize(
    ("source", "target"), [("a.{i}", "b"), ("a", "b.{i}"), ("a.{i}.{i}", "b.{i}")]
)
def test_a_rule_with_a_layer_number_on_one_side_is_refused(
    source: str, target: str, toys: Any
) -> None:
    with pytest.raises(PluginError, match=r"\{i\}"):
        resolve(toys, weight_map=WeightMap((WeightRule(source, target),)))
