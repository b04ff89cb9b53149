"""The Gemma model family for Pegboard: Gemma 1, Gemma 2 and Gemma 3 text models."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.model import Abilities, ModelFamily

PEGBOARD_API = {"model": 0}


@hookimpl
def pegboard_model_families() -> tuple[ModelFamily, ...]:
    """One family; its parts are imported when a checkpoint asks for it.

    ``Gemma3ForConditionalGeneration`` is claimed so that it can be refused with the reason.
    """
    return (
        ModelFamily(
            name="gemma",
            architectures={
                "hf": (
                    "GemmaForCausalLM",
                    "Gemma2ForCausalLM",
                    "Gemma3ForCausalLM",
                    "Gemma3ForConditionalGeneration",
                ),
                "gguf": ("gemma", "gemma2", "gemma3"),
            },
            config="pegboard_model_gemma.config:read_config",
            weights="pegboard_model_gemma.weights:weight_map",
            build="pegboard_model_gemma.model:build",
            abilities=Abilities(tensor_parallel=True),
        ),
    )
