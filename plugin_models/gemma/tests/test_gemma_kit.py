"""Each generation of the Gemma family passes the conformance kit, with transformers as the
reference."""

from __future__ import annotations

from typing import Any

import transformers

from pegboard_testkit.pretrained_kit import SIZES, PretrainedKit

MORE: dict[str, Any] = {
    **SIZES,
    "head_dim": 8,
    "pad_token_id": 0,
    "attn_implementation": "eager",  # others leave out the soft caps in some releases
}


class TestGemma1(PretrainedKit):
    family = "gemma"

    def build(self) -> Any:
        config = transformers.GemmaConfig(**MORE)
        return transformers.GemmaForCausalLM(config)


class TestGemma2(PretrainedKit):
    family = "gemma"

    def build(self) -> Any:
        config = transformers.Gemma2Config(**MORE, sliding_window=20)
        return transformers.Gemma2ForCausalLM(config)


class TestGemma3(PretrainedKit):
    family = "gemma"

    def build(self) -> Any:
        kinds = ["sliding_attention", "full_attention", "sliding_attention"]
        config = transformers.Gemma3TextConfig(
            **MORE | {"num_hidden_layers": 3, "sliding_window": 12, "layer_types": kinds}
        )
        return transformers.Gemma3ForCausalLM(config)
