"""The demo model over HTTP, asked as evaluation harnesses ask: prompts are echoed with the
log-probabilities of their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from served import Served, serve

pytestmark = pytest.mark.accept

PAIRS = (
    ("The capital of France is", " Paris"),
    ("Water freezes at a temperature of", " zero degrees Celsius."),
    ("One, two, three,", " four, five, six"),
    ("def add(a, b):\n    return", " a + b\n"),
    ("Question: Is the sky green?\nAnswer:", " no"),
    ("Question: Is the sky green?\nAnswer:", " yes"),
    ("Er ging in die", " Küche und trank Wasser."),
)


@pytest.fixture(scope="module")
def server(smollm2_path: Path) -> Iterator[Served]:
    one = serve(
        smollm2_path, "--dtype", "float32", "--served-model-name", "smol", "--max-model-len", "1k",
        engine=("--platform", "cpu"),
    )  # fmt: skip
    one.until(lambda: one.process.poll() is None and "serving" in one.log(), 120)
    yield one
    one.kill()


def likelihoods(reference: Any, context: list[int], rest: list[int]) -> tuple[float, bool]:
    import torch

    with torch.no_grad():
        logits = reference(torch.tensor([context + rest])).logits[0]
    scores = logits.log_softmax(-1)[len(context) - 1 : -1]
    best = scores.argmax(-1).tolist() == rest
    return float(scores.gather(1, torch.tensor(rest)[:, None]).sum()), best


def test_likelihoods_are_those_of_the_reference(server: Served, smollm2_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )

    def encode(text: str) -> list[int]:
        reply = server.post("/tokenize", prompt=text, add_special_tokens=False)
        return list(reply.json()["tokens"])

    contexts = [encode(context) for context, _ in PAIRS]
    rests = [encode(a + b)[len(ids) :] for (a, b), ids in zip(PAIRS, contexts, strict=True)]
    prompts = [a + b for a, b in zip(contexts, rests, strict=True)]
    for limit in (0, 1):
        reply = server.post(
            "/v1/completions", model="smol", prompt=prompts, temperature=0, max_tokens=limit,
            logprobs=1, seed=1234, echo=True,
        ).json()  # fmt: skip
        for choice, context, rest in zip(reply["choices"], contexts, rests, strict=True):
            scores = choice["logprobs"]
            end = len(context) + len(rest)
            found = scores["token_logprobs"][len(context) : end]
            tops = scores["top_logprobs"][len(context) : end]
            greedy = all(s == max(t.values()) for s, t in zip(found, tops, strict=True))
            assert len(scores["tokens"]) == end + limit
            wanted, best = likelihoods(reference, context, rest)
            assert sum(found) == pytest.approx(wanted, abs=1e-3)
            assert greedy == best


def test_the_official_client_talks_to_the_demo_model(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as api:
        messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
        options: Any = {"model": "smol", "messages": messages, "temperature": 0, "max_tokens": 24}
        whole = api.chat.completions.create(**options)
        text = whole.choices[0].message.content or ""
        assert "Paris" in text
        pieces = api.chat.completions.create(**options, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in pieces) == text
