"""Random mixtures of experts of the Qwen family against transformers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.errors import CheckpointError
from pegboard_testkit.near_tie import assert_same
from pegboard_testkit.reference import (
    compare_distributions,
    distributions,
    reference_logprobs,
)

TOLERANCE = 1e-4
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 20, "norm_topk_prob": False}
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Moe", {**EXPERTS, "head_dim": 16}),
    "qwen3, weights as they are": ("Qwen3Moe", {**EXPERTS, "norm_topk_prob": False}),
    "qwen3, tied, one of four experts": (
        "Qwen3Moe",
        {
            **EXPERTS,
            "num_experts": 4,
            "num_experts_per_tok": 1,
            "tie_word_embeddings": True,
            "head_dim": 12,
        },
    ),
    "qwen3, all of five experts, biases": (
        "Qwen3Moe",
        {**EXPERTS, "num_experts": 5, "num_experts_per_tok": 5, "attention_bias": True},
    ),
    "qwen3, every second layer": (
        "Qwen3Moe",
        {**EXPERTS, "decoder_sparse_step": 2, "num_hidden_layers": 4, "num_key_value_heads": 4},
    ),
    "qwen3, a dense layer by number": ("Qwen3Moe", {**EXPERTS, "mlp_only_layers": [1]}),
    "qwen3, windows": ("Qwen3Moe", {**EXPERTS, "use_sliding_window": True, "sliding_window": 9}),
    "qwen2, a shared expert": ("Qwen2Moe", SHARED),
    "qwen2, tied, renormalised, no biases": (
        "Qwen2Moe",
        {**SHARED, "norm_topk_prob": True, "tie_word_embeddings": True, "qkv_bias": False},
    ),
    "qwen2, windows, a dense layer": (
        "Qwen2Moe",
        {
            **SHARED,
            "use_sliding_window": True,
            "sliding_window": 11,
            "max_window_layers": 2,
            "mlp_only_layers": [0],
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


@pytest.mark.parametrize("name", ["qwen3", "qwen2, a shared expert"])
def test_experts_in_three_shards_change_nothing(
    name: str, tmp_path: Path, checkpoints: Any
) -> None:
    generation, settings = SHAPES[name]
    reference = checkpoints.write(generation, settings, tmp_path, shards=3)
    check(reference, checkpoints.answers(tmp_path, max_num_batched_tokens=24))


@pytest.mark.parametrize(
    "change",
    [{"norm_topk_prob": False}, {"num_experts_per_tok": 3}, {"rms_norm_eps": 0.05}],
)
def test_what_should_change_the_answer_does(
    change: dict[str, Any], tmp_path: Path, checkpoints: Any
) -> None:
    """The comparison notices it: this is what the tests above rely on."""
    reference = checkpoints.write("Qwen3Moe", EXPERTS, tmp_path)
    checkpoints.change(tmp_path, **change)
    with pytest.raises(AssertionError):
        check(reference, checkpoints.answers(tmp_path))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_local_experts": 7}, r"experts\.7\.\w+_proj\.weight.* is of expert 7"),
        ({"num_local_experts": 9}, r"missing.*'model\.layers\.0\.mlp\.experts\.8\.gate_proj"),
        ({"moe_intermediate_size": 16}, r"experts\.0\.gate_proj.* has shape \[24, 32\]"),
        ({"mlp_only_layers": [0]}, r"'model\.layers\.0\.mlp\.gate_proj\.weight'.*layers\.0\.mlp"),
    ],
)
def test_experts_that_are_missing_or_left_over_are_named(
    change: dict[str, Any], said: str, tmp_path: Path, checkpoints: Any
) -> None:
    checkpoints.write("Qwen3Moe", EXPERTS, tmp_path)
    checkpoints.change(tmp_path, **change)
    with pytest.raises(CheckpointError, match=said):
        LLM(str(tmp_path), dtype="float32")


def test_random_weights_need_no_files(tmp_path: Path, checkpoints: Any) -> None:
    checkpoints.write("Qwen3Moe", EXPERTS, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    params = SamplingParams(max_tokens=3, ignore_eos=True, detokenize=False)
    with LLM(
        str(tmp_path), dtype="bfloat16", load_format="dummy", num_gpu_blocks_override=50
    ) as llm:
        (output,) = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 3


def test_bfloat16_follows_the_reference_in_bfloat16(tmp_path: Path, checkpoints: Any) -> None:
    """A slip in rounding, of the router above all, would show as a shift."""
    exact = checkpoints.write("Qwen3Moe", SHAPES["qwen3"][1], tmp_path)
    rounded = copy.deepcopy(exact).to(torch.bfloat16)
    ours, theirs = 0.0, 0.0
    for output in checkpoints.answers(tmp_path, dtype="bfloat16"):
        ids = output.prompt_token_ids + output.outputs[0].token_ids
        wanted = reference_logprobs(exact, ids)[:-1]
        ours += np.abs(distributions(output) - wanted).mean(-1).sum()
        theirs += np.abs(reference_logprobs(rounded, ids)[:-1] - wanted).mean(-1).sum()
    assert 0 < ours <= 1.2 * theirs
