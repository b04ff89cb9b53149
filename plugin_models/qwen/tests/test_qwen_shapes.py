"""Random dense Qwen checkpoints against transformers: every score of the prompts, greedy tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pegboard_testkit.near_tie import assert_same
from pegboard_testkit.reference import compare_distributions

TOLERANCE = 1e-4
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1_000_000.0}
FULL, SLIDING = "full_attention", "sliding_attention"
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, one key head": ("Qwen2", {"num_key_value_heads": 1}),
    "qwen2, seven heads to one": (
        "Qwen2",
        {"hidden_size": 56, "num_attention_heads": 14, "num_key_value_heads": 2},
    ),
    "qwen2, head size given": ("Qwen2", {"head_dim": 12}),
    "qwen2, windows in the last layers": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2, windows listed, large theta": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 12,
            "layer_types": [SLIDING, FULL, SLIDING],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3, head size left out": ("Qwen3", {}),
    "qwen3, tied, a head per query": (
        "Qwen3",
        {"head_dim": 8, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "qwen3, biases, linear rope": (
        "Qwen3",
        {"head_dim": 24, "attention_bias": True, "rope_parameters": LINEAR},
    ),
    "qwen3, windows": (
        "Qwen3",
        {
            "head_dim": 8,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 2,
            "num_hidden_layers": 4,
        },
    ),
}


def check(reference: Any, outputs: Any) -> None:
    assert_same(compare_distributions(reference, outputs, TOLERANCE), gap=TOLERANCE)


@pytest.mark.parametrize(("generation", "settings"), SHAPES.values(), ids=SHAPES)
def test_scores_and_greedy_tokens_are_the_references(
    generation: str, settings: dict[str, Any], tmp_path: Path, checkpoints: Any
) -> None:
    reference = checkpoints.write(generation, settings, tmp_path)
    check(reference, checkpoints.answers(tmp_path))


def test_shards_and_small_steps_change_nothing(tmp_path: Path, checkpoints: Any) -> None:
    reference = checkpoints.write("Qwen3", {"head_dim": 16}, tmp_path, shards=3)
    check(reference, checkpoints.answers(tmp_path, max_num_batched_tokens=24))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("qwen2, windows in the last layers", {"sliding_window": 10, "layer_types": None}),
        ("qwen2, windows in the last layers", {"max_window_layers": 2, "layer_types": None}),
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 11_000.0}}),
        ("qwen3", {"rms_norm_eps": 0.05}),
    ],
)
def test_what_should_change_the_answer_does(
    name: str, change: dict[str, Any], tmp_path: Path, checkpoints: Any
) -> None:
    """The comparison notices it: this is what the tests above rely on."""
    generation, settings = SHAPES[name]
    reference = checkpoints.write(generation, settings, tmp_path)
    checkpoints.change(tmp_path, **change)
    with pytest.raises(AssertionError):
        check(reference, checkpoints.answers(tmp_path))
