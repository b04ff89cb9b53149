"""Prompt and decode rates of the demo model, beside the reference implementation's eager fp32.

Usage: ``python tests/benchmarks/bench_cpu.py MODEL.gguf [--rounds N] [--json FILE]``.

Both engines live in this process with the same number of threads and take turns within each round,
so that a machine whose speed drifts slows both. Quote the ratios. Prompts are random token ids; no
prompt is used twice. Prompt processing is the time of a generation of one token; decode is the
difference of two generations, per further token.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

Generate = Callable[[list[list[int]], int], None]
"""(prompts, output tokens) → when all tokens are made."""


@attrs.frozen
class Workload:
    """`batch` prompts of `prompt` tokens.

    The rate of decoding, from `output` tokens; with None, that of prompt processing.
    """

    name: str
    batch: int
    prompt: int
    output: int | None
    goal: float = 1.0
    """Least ratio that is wanted."""


WORKLOADS = (
    Workload("prompt 512", 1, 512, None, goal=1.5),
    Workload("decode, empty context", 1, 4, 24),
    Workload("decode at 1k", 1, 1024, 24),
    Workload("decode, 8 at 128", 8, 128, 16),
)


def ours(model: str, dtype: str) -> tuple[Generate, int]:
    """Our engine and the vocabulary's size."""
    from pegboard import LLM, SamplingParams

    llm = LLM(model, dtype=dtype, max_model_len=2048, max_num_batched_tokens=2048)

    def generate(prompts: list[list[int]], tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
        llm.generate(prompts, params, use_tqdm=False)

    return generate, llm.model.facts.vocab_size


def reference(model: str) -> Generate:
    """The reference implementation: weights dequantised to fp32, eager attention."""
    import torch
    from transformers import AutoModelForCausalLM

    path = Path(model)
    net: Any = AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def generate(prompts: list[list[int]], tokens: int) -> None:
        with torch.no_grad():
            net.generate(
                torch.tensor(prompts),
                attention_mask=torch.ones(len(prompts), len(prompts[0]), dtype=torch.int64),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
            )

    return generate


def rate(generate: Generate, load: Workload, draws: random.Random, vocabulary: int) -> float:
    """Tokens per second."""

    def timed(tokens: int) -> float:
        prompts = [
            [draws.randrange(vocabulary) for _ in range(load.prompt)] for _ in range(load.batch)
        ]
        begin = time.perf_counter()
        generate(prompts, tokens)
        return time.perf_counter() - begin

    if load.output is None:
        return load.batch * load.prompt / timed(1)
    first = timed(1)
    return load.batch * (load.output - 1) / max(timed(load.output) - first, 1e-9)


def processor() -> str:
    """What the machine computes with: a figure means little without it."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else 'unknown processor'} ({capability})"


def measure(
    engines: dict[str, Generate], load: Workload, rounds: int, vocabulary: int
) -> dict[str, list[float]]:
    """Rates per engine, engines in turn; one round to warm up."""
    draws = random.Random(0)
    found: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 1):
        for name, generate in engines.items():
            value = rate(generate, load, draws, vocabulary)
            if number:
                found[name].append(value)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    generate, vocabulary = ours(options.model, options.dtype)
    engines = {"pegboard": generate, "reference": reference(options.model)}
    print(
        f"{processor()}; torch {torch.__version__}, {torch.get_num_threads()} threads, "
        f"dtype {options.dtype}"
    )
    print(
        f"{'tok/s, median (min-max)':<24} {'pegboard':>22} {'reference fp32':>22} "
        f"{'ratio':>7} {'goal':>6}"
    )
    records = []
    for load in WORKLOADS:
        rates = measure(engines, load, options.rounds, vocabulary)
        pairs = zip(rates["pegboard"], rates["reference"], strict=True)
        ratio = statistics.median(own / other for own, other in pairs)
        cells = [f"{statistics.median(r):.1f} ({min(r):.1f}-{max(r):.1f})" for r in rates.values()]
        line = f"{load.name:<24} {cells[0]:>22} {cells[1]:>22} {ratio:>7.2f} {load.goal:>6.1f}"
        print(line + ("" if ratio >= load.goal else "  short of it"), flush=True)
        records.append({**attrs.asdict(load), "rates": rates, "ratio": ratio})
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
