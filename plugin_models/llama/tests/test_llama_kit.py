"""The Llama family passes the conformance kit, with transformers as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
import transformers

from pegboard_testkit.model_kit import ModelKit


class TestLlamaFamily(ModelKit):
    family = "llama"

    @cached_property
    def reference(self) -> transformers.LlamaForCausalLM:
        torch.manual_seed(3)
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=67,
            max_position_embeddings=128,
            initializer_range=0.3,
        )
        return transformers.LlamaForCausalLM(config).eval()

    def checkpoint(self, folder: Path) -> Path:
        self.reference.save_pretrained(folder)
        return folder

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([ids])).logits[0]
        return logits
