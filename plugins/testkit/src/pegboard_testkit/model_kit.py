"""Conformance kit for the surface *model family*.

A test file of a family subclasses `ModelKit`, says how to write a small checkpoint and what the
logits of some token ids are by an independent computation, and gets the tests below. Each runs the
whole engine on the CPU and compares with the reference by the near-tie rule::

    class TestMyFamily(ModelKit):
        family = "my-family"

        def checkpoint(self, folder: Path) -> Path: ...

        def logits(self, ids: Sequence[int]) -> Any: ...

A test that was not put to the proof (nothing was preempted, nothing came from the cache) fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard_testkit.near_tie import Comparison, assert_same, compare

__all__ = ["ModelKit"]

Floats = np.ndarray[Any, np.dtype[np.float64]]

SCORED = SamplingParams(
    temperature=0.0, max_tokens=1, logprobs=-1, prompt_logprobs=-1, detokenize=False
)
"""Log-probabilities of the whole vocabulary after every token of the prompt."""


class ModelKit:
    """Tests of a model family; subclass it in a test file under a name that begins with ``Test``.

    `family`, `checkpoint` and `logits` must be given; the other attributes may be changed.
    """

    family: str
    """Name in the family's descriptor: the tests fail if another family answers."""
    context = 128
    """Longest sequence, in tokens, that the tests make; the model must allow it. At least 64, and
    at least three blocks."""
    block_size = 8
    """Tokens per KV block."""
    logprob_tolerance = 1e-4
    """Largest difference, in nats, of a log-probability of a prompt."""
    gap = 1e-3
    """Near-tie rule: most nats between a chosen token and the likeliest one, and most difference of
    the log-probabilities of chosen tokens."""
    options: Mapping[str, Any] = {}
    """Further engine options, for example ``{"platform": "null"}``."""

    def checkpoint(self, folder: Path) -> Path:
        """Write a small checkpoint with random weights into the empty `folder`, and give its path.

        Called for each test, on a new instance, so equal calls must write equal weights.
        """
        raise AssertionError(f"{type(self).__name__} must define checkpoint(folder)")

    def logits(self, ids: Sequence[int]) -> Any:
        """Reference: what follows each of the `ids`, an array ``[len(ids), vocabulary]``.

        It must not be computed by the engine, and not depend on later ids.
        """
        raise AssertionError(f"{type(self).__name__} must define logits(ids)")

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """The checkpoint."""
        return self.checkpoint(tmp_path)

    def test_the_family_under_test_answers(self, model: Path) -> None:
        with self.engine(model) as llm:
            found = llm.model.family.name
        assert found == self.family, f"the checkpoint is served by {found!r}, not {self.family!r}"

    def test_log_probabilities_equal_the_reference(self, model: Path) -> None:
        prompts = self.prompts([1, 2, 17, self.context - 1])
        with self.engine(model, max_num_batched_tokens=4 * self.context) as llm:
            outputs = llm.generate(prompts, SCORED, use_tqdm=False)
        for output in outputs:
            self._check_distributions(output)

    def test_chunks_of_a_prompt_give_what_the_whole_gives(self, model: Path) -> None:
        for budget in (16, 17):  # chunks that end at a block's end, and chunks that do not
            with self.engine(model, max_num_batched_tokens=budget) as llm:
                prompts = self.prompts([self.context - 1, 2 * budget + 1])
                for output in llm.generate(prompts, SCORED, use_tqdm=False):
                    self._check_distributions(output)

    def test_batch_mates_do_not_change_a_request(self, model: Path) -> None:
        lengths = [1, 3, 29, self.context // 2, 8, 16, 5]
        found = self._run(model, self.prompts(lengths), max_num_batched_tokens=24)
        self._check_greedy(found)

    def test_a_cached_beginning_gives_what_computing_it_gives(self, model: Path) -> None:
        (beginning,) = self.prompts([self.context // 2 + 1])  # its last token is computed anyway
        ends = self.prompts([1, 9, 19], seed=1)
        with self.engine(model) as llm:
            self._greedy(llm, [beginning])
            outputs = self._greedy(llm, [beginning, *(beginning + end for end in ends)])
        cached = [output.num_cached_tokens for output in outputs]
        assert min(cached) >= self.block_size, f"tokens from the cache, by request: {cached}"
        self._check_greedy(outputs)

    def test_preempted_requests_give_the_same_tokens(self, model: Path) -> None:
        prompts = self.prompts([10] * 4)  # all are admitted, then grow out of their room
        budget = {"max_num_batched_tokens": 16}
        options = {
            **budget,
            "num_gpu_blocks_override": self._blocks_for_one(model, **budget) + 2,
            "enable_prefix_caching": False,
        }
        with self.engine(model, **options) as llm:
            outputs = self._greedy(llm, prompts, tokens=self.context - 20)
            preemptions = llm.engine.stats().preemptions
        assert preemptions > 0, "nothing was preempted"
        self._check_greedy(outputs)

    @contextmanager
    def engine(self, model: Path, **options: Any) -> Iterator[LLM]:
        """An engine with exact arithmetic and room for the sequences of the tests."""
        least = max(64, 3 * self.block_size)
        assert self.context >= least, f"context={self.context}: the tests need at least {least}"
        common = {
            "dtype": "float32",
            "max_model_len": self.context,
            "block_size": self.block_size,
            "max_num_seqs": 8,
            "num_gpu_blocks_override": 8 * (self.context // self.block_size) + 1,
        }
        with LLM(str(model), **{**common, **self.options, **options}) as llm:
            yield llm

    def _blocks_for_one(self, model: Path, **options: Any) -> int:
        """Blocks, over all KV groups, that one request of the whole context needs."""
        with self.engine(model, **options) as llm:
            budget = llm.config.max_num_batched_tokens
            return sum(
                group.spec.blocks_for(self.context, group.block_size, budget)
                for group in llm.cache.groups
            )

    def prompts(self, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
        """Random token ids of the reference's vocabulary."""
        vocabulary = self._logprobs([0]).shape[1]
        draws = np.random.default_rng(seed)
        return [draws.integers(0, vocabulary, size=length).tolist() for length in lengths]

    def _logprobs(self, ids: Sequence[int]) -> Floats:
        logits = np.asarray(self.logits(ids), np.float64)
        assert logits.ndim == 2 and len(logits) == len(ids), (
            f"logits of {len(ids)} ids have the shape {list(logits.shape)}, not "
            f"[{len(ids)}, vocabulary]"
        )
        shifted = logits - logits.max(-1, keepdims=True)
        found: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return found

    def _run(self, model: Path, prompts: list[list[int]], **options: Any) -> list[RequestOutput]:
        with self.engine(model, **options) as llm:
            return self._greedy(llm, prompts)

    def _greedy(self, llm: LLM, prompts: list[list[int]], tokens: int = 12) -> list[RequestOutput]:
        params = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, logprobs=0, detokenize=False
        )
        return llm.generate(prompts, params, use_tqdm=False)

    def _check_distributions(self, output: RequestOutput) -> None:
        """Every log-probability after every token of the prompt, against the reference."""
        scored, drawn = output.prompt_logprobs, output.outputs[0].logprobs
        assert scored is not None and drawn is not None, "log-probabilities are missing"
        expected = self._logprobs(output.prompt_token_ids)
        assert len(scored) == len(expected), f"{len(scored)} scores for {len(expected)} tokens"
        for place, entry in enumerate([*scored[1:], drawn[0]]):
            assert entry is not None and len(entry) == expected.shape[1], (
                f"after token {place} of {len(expected)}, not the whole vocabulary is scored"
            )
            ours = np.array([entry[token].logprob for token in range(len(entry))])
            worst = float(np.abs(ours - expected[place]).max())
            assert worst <= self.logprob_tolerance, (
                f"after token {place} of {len(expected)}, log-probabilities differ by up to {worst}"
            )

    def _check_greedy(self, outputs: Sequence[RequestOutput]) -> None:
        """The tokens of all outputs together, by the near-tie rule."""
        found = Comparison()
        for output in outputs:
            made = output.outputs[0]
            assert made.logprobs is not None, "log-probabilities are missing"
            assert made.finish_reason == "length", f"ended by {made.finish_reason!r}"
            first = len(output.prompt_token_ids) - 1
            reference = self._logprobs(output.prompt_token_ids + made.token_ids)[first:-1]
            chosen = reference[np.arange(len(made.token_ids)), made.token_ids]
            own = [
                entry[token].logprob
                for entry, token in zip(made.logprobs, made.token_ids, strict=True)
            ]
            found = found.add(compare(chosen.tolist(), reference.max(-1).tolist(), own))
        assert_same(found, gap=self.gap, logprob=self.gap)
