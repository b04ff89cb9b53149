"""The Qwen family passes the conformance kit, with transformers as the reference."""

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
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 67,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}


class QwenKit(ModelKit):
    """What the generations share."""

    family = "qwen"

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


class TestQwen3Moe(QwenKit):
    def build(self) -> Any:
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        config = transformers.Qwen3MoeConfig(**SIZES, **experts, head_dim=8, norm_topk_prob=True)
        return transformers.Qwen3MoeForCausalLM(config)


class TestQwen2(QwenKit):
    def build(self) -> Any:
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES))


class TestQwen3(QwenKit):
    def build(self) -> Any:
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=12))
