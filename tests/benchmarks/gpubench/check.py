"""Before anything is timed: the engine with its fast ops says what the one with plain ops says.

Both load the same short model (`models.write_weights`) with the settings of the timed runs. Eight
prompts of different lengths get four greedy tokens each. At every position up to the first token
that differs, log-probabilities of the likeliest tokens must agree; tokens may differ only where the
plain engine's two likeliest are closer than the tolerance.
"""

from __future__ import annotations

import gc
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gpubench.models import Model, write_weights
from pegboard import LLM, SamplingParams

STEPS = 4
LENGTHS = (1, 7, 33, 128, 257, 512, 700, 1023)
TOLERANCES = {"float32": 2e-3, "bfloat16": 0.15, "float16": 0.05}
"""Largest difference of a log-probability, where logits have a standard deviation of about 2.
bfloat16 alone makes 0.05 to 0.1; a product of one layer that is wrong by a tenth makes 0.2."""
COARSE = 3.0
"""How much more where activations, weights or cache have 8 bits: a last bit of bfloat16 can turn
one of theirs."""
LIKELIEST = 8
"""Alternatives compared per position."""
CACHE_BYTES = 4 << 30

Answer = list[tuple[int, dict[int, float]]]
"""Per step: the token, and log-probabilities of it and of the likeliest ones."""


@attrs.frozen
class Verdict:
    """What a comparison found."""

    positions: int
    """Compared ones, of rows × steps."""
    of: int
    largest: float
    """Difference of log-probabilities."""
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.faults

    def __str__(self) -> str:
        words = f"{self.positions} of {self.of} positions compared, largest difference "
        words += f"{self.largest:.4f}"
        return f"{words}: " + ("passed" if self.passed else "FAILED: " + "; ".join(self.faults))


def run_check(model: Model, settings: Mapping[str, Any], plain_attention: str | None) -> Verdict:
    """Run both engines, one after the other. `plain_attention` names the backend of the plain one;
    None: the same as that of the fast one."""
    with tempfile.TemporaryDirectory(prefix="bench-check-") as folder:
        path = write_weights(model, Path(folder) / model.name)
        plain = {"op_versions": "plain"}
        if plain_attention is not None:
            plain["attention_backend"] = plain_attention
        expected, dtype = _answers(path, {**settings, **plain}, [])
        others: list[list[Answer]] = []
        found, _ = _answers(path, settings, others)
    coarse = settings.get("quantization") or "8" in settings.get("kv_cache_dtype", "")
    tolerance = TOLERANCES[dtype] * (COARSE if coarse else 1.0)
    verdict = compare(expected, found, tolerance)
    again = compare(expected, others[0], tolerance)
    faults = (*verdict.faults, *(f"without logprobs: {fault}" for fault in again.faults))
    return attrs.evolve(verdict, faults=faults)


def _answers(
    path: Path, settings: Mapping[str, Any], silent: list[list[Answer]]
) -> tuple[list[Answer], str]:
    """Answers of one engine, and its dtype. Into `silent` go those to the same prompts when no
    log-probabilities are asked for, which may take another way through the sampler."""
    options = dict(settings)
    if "num_gpu_blocks_override" not in options:
        options["kv_cache_memory_bytes"] = CACHE_BYTES
    with LLM(path, enable_prefix_caching=False, **options) as llm:
        room = llm.model.max_model_len - STEPS
        draws, ids = random.Random("check"), range(llm.model.facts.vocab_size)
        prompts = [draws.choices(ids, k=min(length, room)) for length in LENGTHS]
        answers = _generate(llm, prompts, LIKELIEST)
        silent.append(_generate(llm, prompts, None))
        dtype = llm.engine.core.executor.facts()["dtype"]
    del llm
    gc.collect()
    _empty_cache()
    return answers, dtype


def _generate(llm: LLM, prompts: Sequence[list[int]], logprobs: int | None) -> list[Answer]:
    params = SamplingParams(temperature=0.0, max_tokens=STEPS, ignore_eos=True, logprobs=logprobs)
    given: Any = prompts
    results = []
    for answer in llm.generate(given, params, use_tqdm=False):
        output = answer.outputs[0]
        entries: Any = output.logprobs or [{} for _ in output.token_ids]
        results.append(
            [
                (token, {other: value.logprob for other, value in entry.items()})
                for token, entry in zip(output.token_ids, entries, strict=True)
            ]
        )
    return results


def compare(expected: Sequence[Answer], found: Sequence[Answer], tolerance: float) -> Verdict:
    """Row by row, step by step, until a near tie parts the two."""
    positions, largest = 0, 0.0
    faults: list[str] = []
    for row, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if len(ours) != len(theirs):
            faults.append(f"row {row} has {len(ours)} tokens instead of {len(theirs)}")
        for step, ((token, values), (right, oracle)) in enumerate(zip(ours, theirs, strict=False)):
            positions += 1
            difference = _difference(values, oracle)
            largest = max(largest, difference)
            where = f"row {row} step {step}"
            if not difference <= tolerance:
                faults.append(f"{where}: log-probabilities differ by {difference:.4f}")
                break
            if token == right:
                continue
            gap = oracle[right] - oracle.get(token, float("-inf"))
            if not gap <= tolerance:
                faults.append(f"{where}: token {token} instead of {right}, {gap:.4f} less likely")
            break
    total = sum(map(len, expected))
    if positions < total / 2:
        faults.append("near ties left less than half of the positions to compare")
    return Verdict(positions, total, largest, tuple(faults))


def _difference(values: Mapping[int, float], oracle: Mapping[int, float]) -> float:
    """Largest difference over the tokens that both report; infinite if there are none or one is no
    number, and 0 where nothing was asked for."""
    if not values:
        return 0.0
    gaps = [abs(values[token] - oracle[token]) for token in values.keys() & oracle.keys()]
    return max(gaps) if gaps and all(gap == gap for gap in gaps) else float("inf")


def _empty_cache() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
