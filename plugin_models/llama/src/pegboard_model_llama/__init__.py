"""The Llama model family for Pegboard: Llama 1 to 3.x, Mistral, SmolLM2 and kin."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.model import Abilities, ModelFamily

PEGBOARD_API = {"model": 0}


@hookimpl
def pegboard_model_families() -> tuple[ModelFamily, ...]:
    """One family; its parts are imported when a checkpoint asks for it."""
    return (
        ModelFamily(
            name="llama",
            architectures={
                "hf": ("LlamaForCausalLM", "MistralForCausalLM", "MinistralForCausalLM"),
                "gguf": ("llama",),
            },
            config="pegboard_model_llama.config:read_config",
            weights="pegboard_model_llama.weights:weight_map",
            build="pegboard_model_llama.model:build",
            abilities=Abilities(tensor_parallel=True),
        ),
    )
