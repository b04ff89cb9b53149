"""In bfloat16 a GPU is about as far from float32 as transformers is in bfloat16.

Teacher-forced over random prompts, both against transformers in float32 on the CPU.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pegboard import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

CONTEXT, VOCAB = 256, 512
ALLOWED = 1.2
"""Times the divergence of transformers in bfloat16."""
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.08,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MODELS: dict[str, Any] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**COMMON)),
    "qwen3-moe": lambda: transformers.Qwen3MoeForCausalLM(
        transformers.Qwen3MoeConfig(
            **COMMON,
            moe_intermediate_size=128,
            num_experts=8,
            num_experts_per_tok=2,
            norm_topk_prob=True,
        )
    ),
}


def prompts() -> list[list[int]]:
    draws = np.random.default_rng(0)
    return [draws.integers(3, VOCAB, size=draws.integers(60, 250)).tolist() for _ in range(12)]


@torch.no_grad()
def reference(model: torch.nn.Module, requests: list[list[int]]) -> list[torch.Tensor]:
    """Log-probabilities ``float32 [tokens - 1, vocab]`` of each request, on the host."""
    device = next(model.parameters()).device
    found = []
    for ids in requests:
        logits = model(torch.tensor([ids], device=device)).logits[0, :-1]
        found.append(torch.log_softmax(logits.float(), -1).cpu())
    return found


def ours(folder: Path, requests: list[list[int]], **options: Any) -> list[torch.Tensor]:
    params = SamplingParams(max_tokens=1, prompt_logprobs=-1)
    common = {"max_model_len": CONTEXT, "skip_tokenizer_init": True, "platform": "cuda"}
    found = []
    with LLM(str(folder), **{**common, **options}) as llm:
        for output in llm.generate(requests, params, use_tqdm=False):
            rows = torch.empty(len(output.prompt_token_ids) - 1, VOCAB)
            for row, entry in zip(rows, output.prompt_logprobs[1:], strict=True):
                for token, item in entry.items():
                    row[token] = item.logprob
            found.append(rows)
    return found


def divergence(exact: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Mean KL(exact ‖ other) in nats per token."""
    total = sum(
        (true.exp() * (true - near)).sum(dtype=torch.float64)
        for true, near in zip(exact, other, strict=True)
    )
    return float(total) / sum(len(true) for true in exact)


@pytest.mark.parametrize("name", MODELS)
def test_bfloat16_is_as_close_to_float32_as_transformers_is(name: str, tmp_path: Path) -> None:
    torch.manual_seed(5)
    model = MODELS[name]().eval()
    model.save_pretrained(tmp_path)
    requests = prompts()
    exact = reference(model, requests)
    theirs = divergence(exact, reference(model.to("cuda", torch.bfloat16), requests))
    found = divergence(exact, ours(tmp_path, requests, dtype="bfloat16"))
    assert 0 < found <= ALLOWED * theirs, (found, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_float32_is_exact(name: str, tmp_path: Path) -> None:
    torch.manual_seed(6)
    model = MODELS[name]().eval()
    model.save_pretrained(tmp_path)
    requests = prompts()
    exact = reference(model, requests)
    for true, near in zip(exact, ours(tmp_path, requests, dtype="float32"), strict=True):
        assert (true - near).abs().max() <= 1e-3
