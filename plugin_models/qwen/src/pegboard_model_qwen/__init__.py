"""The Qwen model family for Pegboard: Qwen2, Qwen2.5 and Qwen3, dense and mixtures of experts."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.model import Abilities, ModelFamily

PEGBOARD_API = {"model": 0}


@hookimpl
def pegboard_model_families() -> tuple[ModelFamily, ...]:
    """One family; its parts are imported when a checkpoint asks for it."""
    return (
        ModelFamily(
            name="qwen",
            architectures={
                "hf": (
                    "Qwen2ForCausalLM",
                    "Qwen2MoeForCausalLM",
                    "Qwen3ForCausalLM",
                    "Qwen3MoeForCausalLM",
                ),
                "gguf": ("qwen2", "qwen3", "qwen3moe"),
            },
            config="pegboard_model_qwen.config:read_config",
            weights="pegboard_model_qwen.weights:weight_map",
            build="pegboard_model_qwen.model:build",
            abilities=Abilities(tensor_parallel=True),
        ),
    )
