"""Sizes that a checkpoint's tensors cannot have are refused before anything is made of them."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from pegboard.api.kv import FullAttentionSpec, KVSlot, SlidingWindowSpec
from pegboard.api.model import ModelFacts
from pegboard.config.bounds import MAX_LAYERS, check_layer_counts, check_sizes
from pegboard.config.facts import check_facts
from pegboard.errors import CheckpointError, PluginError


@attrs.frozen
class Tensor:
    name: str
    nbytes: int = 4096


@attrs.frozen
class Files:
    """The parts of a checkpoint that are looked at."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    path: str = "model"


def files(config: dict[str, Any], *names: str) -> Any:
    return Files(config, {name: Tensor(name) for name in names})


NUMBERED = ("embed.weight", "layers.0.q.weight", "layers.1.q.weight", "layers.1.k.weight")


@pytest.mark.parametrize(
    "key",
    ["num_hidden_layers", "num_layers", "n_layer", "n_layers", "layers", "llama.block_count"],
)
@pytest.mark.parametrize("count", [3, 20_000, 10**9, 10**30, float("inf")])
def test_more_layers_than_the_tensors_are_of_are_refused_by_the_keys_name(
    key: str, count: float
) -> None:
    with pytest.raises(CheckpointError, match="the tensors are of 2 layers") as caught:
        check_layer_counts(files({key: count}, *NUMBERED))
    assert f"model: {key}={count}" in str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        {"num_hidden_layers": 2},
        {"num_hidden_layers": "many"},
        {"num_hidden_layers": None},
        {"max_window_layers": 99, "num_kv_shared_layers": 9, "max_position_embeddings": 10**9},
        {"text_config": {"num_hidden_layers": 2}, "vision_config": {"num_hidden_layers": 27}},
    ],
)
def test_other_values_and_keys_are_left_to_the_family(config: dict[str, Any]) -> None:
    check_layer_counts(files(config, *NUMBERED))


@pytest.mark.parametrize(("part", "count"), [("text_config", 3), ("vision_config", 10**9)])
def test_the_layers_of_parts_are_counted_too(part: str, count: int) -> None:
    config = {part: {"num_hidden_layers": count}}
    with pytest.raises(CheckpointError, match=f"{part}.num_hidden_layers={count}"):
        check_layer_counts(files(config, *NUMBERED))


def test_a_high_number_in_a_name_makes_no_layers() -> None:
    with pytest.raises(CheckpointError, match="the tensors are of 2 layers"):
        check_layer_counts(
            files({"layers": 10**8}, "layers.0.q.weight", "layers.999999999.q.weight")
        )


def test_without_numbered_tensors_there_is_a_fixed_limit() -> None:
    check_layer_counts(files({"layers": MAX_LAYERS}))
    with pytest.raises(CheckpointError, match=f"at most {MAX_LAYERS}"):
        check_layer_counts(files({"layers": MAX_LAYERS + 1}))


def facts(hidden: int = 32, vocab: int = 100, heads: int = 2, size: int = 16) -> ModelFacts:
    slots = (KVSlot(0, "self", FullAttentionSpec(heads, size, "float32")),)
    return ModelFacts(
        layers=1, hidden_size=hidden, vocab_size=vocab, max_positions=64, kv_slots=slots
    )


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"hidden": 10**9}, "hidden_size=1000000000"),
        ({"vocab": 10**9}, "vocab_size=1000000000"),
        ({"heads": 10**9}, "1000000000 key-value heads of size 16"),
        ({"size": 10**9}, "2 key-value heads of size 1000000000"),
        ({"hidden": 2**31}, "hidden_size=2147483648 is not allowed: from 1"),
    ],
)
def test_weights_larger_than_the_whole_checkpoint_are_refused(
    sizes: dict[str, int], said: str
) -> None:
    checkpoint = files({}, *NUMBERED)
    check_sizes(checkpoint, facts())
    with pytest.raises(CheckpointError, match="is not allowed") as caught:
        check_sizes(checkpoint, facts(**sizes))
    assert said in str(caught.value)


def test_random_weights_may_be_of_any_size_that_fits_a_tensor() -> None:
    check_sizes(files({}), facts(hidden=10**6))


SPEC = FullAttentionSpec(1, 8, "float32")
GOOD = ModelFacts(2, 16, 64, 128, (KVSlot(0, "self", SPEC),), eos_token_ids=(2,))


@pytest.mark.parametrize(
    ("fact", "value", "named"),
    [
        ("max_positions", {}, "max_positions={}"),
        ("vocab_size", 64.0, "vocab_size=64.0"),
        ("layers", True, "layers=True"),
        ("bos_token_id", "1", "bos_token_id='1'"),
        ("eos_token_ids", "x", "eos_token_ids='x'"),
        ("eos_token_ids", (1, "x"), "eos_token_ids"),
        ("stored_dtype", None, "stored_dtype=None"),
        ("kv_slots", 3, "kv_slots=3"),
        ("kv_slots", ("0.self",), r"kv_slots\[0\]='0.self'"),
        ("kv_slots", (KVSlot(0, "self", attrs.evolve(SPEC, head_size=1.5)),), "head_size=1.5"),
    ],
)
def test_facts_of_a_wrong_type_are_refused_with_family_and_fact(
    fact: str, value: Any, named: str
) -> None:
    check_facts("own", GOOD)
    with pytest.raises(PluginError, match=f"family 'own': .*{named}"):
        check_facts("own", attrs.evolve(GOOD, **{fact: value}))


def test_a_family_without_facts_is_named() -> None:
    with pytest.raises(PluginError, match="family 'own': facts=None is not allowed"):
        check_facts("own", None)


def test_a_window_that_is_no_integer_is_refused() -> None:
    with pytest.raises(PluginError, match="window='4' is not allowed"):
        SlidingWindowSpec(1, 8, "float32", window="4")  # type: ignore[arg-type]
