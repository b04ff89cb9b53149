"""Each generation of the Gemma family passes the conformance kit, with transformers as the
reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from pegboard_testkit.model_kit import ModelKit

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 67,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "attn_implementation": "eager",  # others leave out the soft caps in some releases
}


class GemmaKit(ModelKit):
    """What the generations share."""

    family = "gemma"

    def build(self) -> Any:
        raise AssertionError("each generation builds its own")

    @cached_property
    def reference(self) -> Any:
        torch.manual_seed(3)
        return self.build().eval()

    def checkpoint(self, folder: Path) -> Path:
        self.reference.save_pretrained(folder)
        return folder

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([ids])).logits[0]
        return logits


class TestGemma1(GemmaKit):
    def build(self) -> Any:
        config = transformers.GemmaConfig(**SIZES, num_hidden_layers=2)
        return transformers.GemmaForCausalLM(config)


class TestGemma2(GemmaKit):
    def build(self) -> Any:
        config = transformers.Gemma2Config(**SIZES, num_hidden_layers=2, sliding_window=20)
        return transformers.Gemma2ForCausalLM(config)


class TestGemma3(GemmaKit):
    def build(self) -> Any:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(
            **SIZES, num_hidden_layers=3, sliding_window=12, layer_types=kinds
        )
        return transformers.Gemma3ForCausalLM(config)
