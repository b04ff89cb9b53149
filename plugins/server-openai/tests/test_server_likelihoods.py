"""The demo model over HTTP, asked as evaluation harnesses ask: prompts are echoed with the
log-probabilities of their tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from served import Served, serve

pytestmark = pytest.mark.accept

HARNESS = "lm-eval[api]==0.4.13"
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


@pytest.fixture(scope="module")
def reference(smollm2_path: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        str(smollm2_path.parent), gguf_file=smollm2_path.name, dtype=torch.float32
    )


def likelihoods(reference: Any, context: list[int], rest: list[int]) -> tuple[float, bool]:
    import torch

    with torch.no_grad():
        logits = reference(torch.tensor([context + rest])).logits[0]
    scores = logits.log_softmax(-1)[len(context) - 1 : -1]
    best = scores.argmax(-1).tolist() == rest
    return float(scores.gather(1, torch.tensor(rest)[:, None]).sum()), best


def tokenised(server: Served) -> list[tuple[list[int], list[int]]]:
    """The pairs as ids, the whole tokenised at once."""

    def encode(text: str) -> list[int]:
        reply = server.post("/tokenize", prompt=text, add_special_tokens=False)
        return list(reply.json()["tokens"])

    return [(ids := encode(a), encode(a + b)[len(ids) :]) for a, b in PAIRS]


def test_likelihoods_are_those_of_the_reference(server: Served, reference: Any) -> None:
    pairs = tokenised(server)
    prompts = [a + b for a, b in pairs]
    for limit in (0, 1):
        reply = server.post(
            "/v1/completions", model="smol", prompt=prompts, temperature=0, max_tokens=limit,
            logprobs=1, seed=1234, echo=True,
        ).json()  # fmt: skip
        for choice, (context, rest) in zip(reply["choices"], pairs, strict=True):
            scores = choice["logprobs"]
            end = len(context) + len(rest)
            found = scores["token_logprobs"][len(context) : end]
            tops = scores["top_logprobs"][len(context) : end]
            greedy = all(s == max(t.values()) for s, t in zip(found, tops, strict=True))
            assert len(scores["tokens"]) == end + limit
            wanted, best = likelihoods(reference, context, rest)
            assert sum(found) == pytest.approx(wanted, abs=1e-3)
            assert greedy == best


TASK = """
task: pairs
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{context}}"
doc_to_target: "{{rest}}"
target_delimiter: ""
metric_list: [{metric: perplexity}, {metric: acc}]
"""


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """lm-eval in an environment of its own, which has neither torch nor transformers."""
    folder = tmp_path_factory.mktemp("harness") / "env"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    wanted = [folder / "bin" / "pip", "install", "-q", "--no-compile", HARNESS]
    done = subprocess.run(wanted, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{HARNESS} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    return folder / "bin" / "lm-eval"


def test_lm_eval_finds_the_likelihoods_of_the_reference(
    server: Served, reference: Any, harness: Path, tmp_path: Path
) -> None:
    rows = [json.dumps({"context": a, "rest": b}) for a, b in PAIRS]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    task = TASK.replace("FILE", str(tmp_path / "pairs.jsonl"))
    (tmp_path / "pairs.yaml").write_text(task)
    where = f"base_url={server.url}/v1/completions,model=smol,max_length=1024,num_concurrent=4"
    words = ["--model", "local-completions", "--model_args", where, "--tasks", "pairs"]
    words += ["--include_path", tmp_path, "--output_path", tmp_path / "out", "--log_samples"]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [harness, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "remote tokenizer" in done.stderr, "it asks the server for its tokens"
    [file] = (tmp_path / "out").rglob("samples_pairs_*.jsonl")
    samples = sorted(map(json.loads, file.read_text().splitlines()), key=lambda s: s["doc_id"])
    furthest = 0.0
    for sample, (context, rest) in zip(samples, tokenised(server), strict=True):
        [[(found, greedy)]] = sample["resps"]
        wanted, best = likelihoods(reference, context, rest)
        furthest = max(furthest, abs(float(found) - wanted))
        assert str(greedy) == str(best)
    print(f"log-likelihoods of lm-eval differ by up to {furthest:.1e}")
    assert furthest < 1e-3


def test_the_official_client_talks_to_the_demo_model(server: Served) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as api:
        messages: Any = [{"role": "user", "content": "What is the capital of France?"}]
        options: Any = {"model": "smol", "messages": messages, "temperature": 0, "max_tokens": 24}
        whole = api.chat.completions.create(**options)
        text = whole.choices[0].message.content or ""
        assert "Paris" in text
        pieces = api.chat.completions.create(**options, stream=True)
        assert "".join(p.choices[0].delta.content or "" for p in pieces) == text
