"""The Qwen model family for Pegboard: Qwen2, Qwen2.5 and Qwen3."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.model import ModelFamily

PEGBOARD_API = {"model": 0}


@hookimpl
def pegboard_model_families() -> tuple[ModelFamily, ...]:
    """One family; its parts are imported when a checkpoint asks for it."""
    return (
        ModelFamily(
            name="qwen",
            architectures={
                "hf": ("Qwen2ForCausalLM", "Qwen3ForCausalLM"),
                "gguf": ("qwen2", "qwen3"),
            },
            config="pegboard_model_qwen.config:read_config",
            weights="pegboard_model_qwen.weights:weight_map",
            build="pegboard_model_qwen.model:build",
        ),
    )
