"""Real checkpoints, quantised, on a GPU: the tokens of the CPU; in bfloat16, close to float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pegboard import LLM, SamplingParams
from pegboard.runner import prompt_logprobs
from pegboard_testkit.near_tie import Comparison, assert_same, compare

pytestmark = [pytest.mark.gpu, pytest.mark.accept, pytest.mark.network, pytest.mark.timeout(900)]

PROSE = Path(__file__).with_name("prose.txt")
POSITIONS = 400
ALLOWED = 1.2
"""Times the divergence of transformers in bfloat16."""


@pytest.fixture(params=["smollm2_path", "gemma_path"])
def checkpoint(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def opened(path: Path, platform: str, **options: Any) -> LLM:
    common = {"max_model_len": 512, "max_num_seqs": 8, "enable_prefix_caching": False}
    return LLM(str(path), platform=platform, **{**common, **options})


def test_greedy_tokens_are_those_of_the_cpu(
    checkpoint: Path, eight_prompts: tuple[str, ...]
) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=48, logprobs=0, ignore_eos=True)
    with opened(checkpoint, "cuda", dtype="float32") as llm:
        outputs = llm.generate(list(eight_prompts), greedy, use_tqdm=False)
    sequences = [output.prompt_token_ids + output.outputs[0].token_ids for output in outputs]
    scored = SamplingParams(max_tokens=0, prompt_logprobs=1)
    with opened(checkpoint, "cpu", dtype="float32") as llm:
        references = llm.generate(sequences, scored, use_tqdm=False)
    found = Comparison()
    for output, reference in zip(outputs, references, strict=True):
        made = output.outputs[0]
        assert reference.prompt_logprobs is not None and made.logprobs is not None
        rows = [row or {} for row in reference.prompt_logprobs[len(output.prompt_token_ids) :]]
        chosen = [row[token].logprob for row, token in zip(rows, made.token_ids, strict=True)]
        best = [max(entry.logprob for entry in row.values()) for row in rows]
        own = [row[token].logprob for row, token in zip(made.logprobs, made.token_ids, strict=True)]
        found = found.add(compare(chosen, best, own))
    assert found.positions == 8 * 48
    assert_same(found)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Tensor]]:
    """Log-probabilities ``[rows, vocab]`` of prompts, where the runner makes them: as dictionaries
    they would take minutes."""
    made: list[torch.Tensor] = []
    original = prompt_logprobs.raw_logprobs

    def copying(logits: torch.Tensor) -> torch.Tensor:
        rows = original(logits)
        made.append(rows.cpu())
        return rows

    monkeypatch.setattr(prompt_logprobs, "raw_logprobs", copying)
    return made


@torch.no_grad()
def transformers_rows(path: Path, ids: list[int], device: str, dtype: torch.dtype) -> torch.Tensor:
    """``float32 [tokens - 1, vocab]``, on the host."""
    model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=dtype)
    logits = model.eval().to(device)(torch.tensor([ids], device=device)).logits[0, :-1]
    return torch.log_softmax(logits.float(), -1).cpu()


def divergence(exact: torch.Tensor, other: torch.Tensor) -> float:
    """Mean KL(exact ‖ other) in nats per token."""
    assert exact.shape == other.shape
    total = (exact.exp() * (exact - other)).sum(dtype=torch.float64)
    return float(total) / len(exact)


def test_bfloat16_is_as_close_to_float32_as_transformers_is(
    checkpoint: Path, copied: list[torch.Tensor]
) -> None:
    with opened(checkpoint, "cuda", dtype="bfloat16") as llm:
        ids = llm.get_tokenizer().encode(PROSE.read_text())[:POSITIONS]
        copied.clear()
        scored = SamplingParams(max_tokens=0, prompt_logprobs=0)
        llm.generate([ids], scored, use_tqdm=False)
    ours = torch.cat(copied).float()
    exact = transformers_rows(checkpoint, ids, "cpu", torch.float32)
    theirs = divergence(exact, transformers_rows(checkpoint, ids, "cuda", torch.bfloat16))
    found = divergence(exact, ours)
    print(f"{checkpoint.name}: KL {found:.6f}, transformers {theirs:.6f} nats")
    assert 0 < found <= ALLOWED * theirs
