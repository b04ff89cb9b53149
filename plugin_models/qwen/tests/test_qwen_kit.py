"""The Qwen family passes the conformance kit, with transformers as the reference."""

from __future__ import annotations

from typing import Any

import transformers

from pegboard_testkit.pretrained_kit import SIZES, PretrainedKit


class TestQwen3Moe(PretrainedKit):
    family = "qwen"

    def build(self) -> Any:
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
        config = transformers.Qwen3MoeConfig(**SIZES, **experts, head_dim=8, norm_topk_prob=True)
        return transformers.Qwen3MoeForCausalLM(config)


class TestQwen2(PretrainedKit):
    family = "qwen"

    def build(self) -> Any:
        return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES))


class TestQwen3(PretrainedKit):
    family = "qwen"

    def build(self) -> Any:
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=12))
