"""The Llama family passes the conformance kit, with transformers as the reference."""

from __future__ import annotations

from typing import Any

import transformers

from pegboard_testkit.pretrained_kit import SIZES, PretrainedKit


class TestLlamaFamily(PretrainedKit):
    family = "llama"

    def build(self) -> Any:
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
