"""Runs plans on one device: block copies, the forward pass, sampling, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch

from pegboard.api.attention import AttentionKernel
from pegboard.api.kv import KVCacheConfig, KVTensors
from pegboard.api.model import Batch, GroupBatch, LanguageModel
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.api.transfer import TransferReport
from pegboard.runner.inputs import StepInputs, dummy_inputs, prepare
from pegboard.runner.prompt_logprobs import PromptChunk, score_prompts
from pegboard.runner.slots import Limits, Slots
from pegboard.runner.storage import copy_blocks
from pegboard.runner.transfers import NoWorker
from pegboard.sampling.rows import SamplingRows
from pegboard.sampling.sampler import FAULTS, Sampled, sample

__all__ = ["ModelRunner", "StepInFlight"]


class ModelRunner:
    """A model, its cache and the running requests. Knows KV groups, never model names."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        limits: Limits,
        cache: KVCacheConfig,
        kernels: Sequence[AttentionKernel],
        storage: Mapping[str, KVTensors],
        device: torch.device,
    ) -> None:
        """`kernels` are those of the cache's groups, in order; `storage` is by slot key."""
        self._model = model
        self._limits = limits
        self._kernels = tuple(kernels)
        self.cache = cache
        self.storage = storage
        self._slots = Slots(limits, cache.groups, device)
        self._worker = NoWorker()

    def connect(self, worker: NoWorker) -> None:
        """From now on steps call the KV connector's worker half."""
        self._worker = worker
        self._kernels = tuple(worker.wrap(kernel) for kernel in self._kernels)

    def close(self) -> None:
        """Let go of the KV connector."""
        self._worker.close()

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepInFlight:
        """Start a step: take differences, copy blocks, run the forward pass up to the logits."""
        self._slots.apply(plan)
        copy_blocks(plan.copies, self.storage.values())
        self._worker.begin(plan)
        computed = self._compute(plan)
        return StepInFlight(self._slots, plan, computed, self._worker.end(plan))

    def _compute(self, plan: StepPlan) -> _Computed:
        """The forward pass of a plan, up to the logits."""
        if not plan.rows:
            if plan.dummy:
                self.dummy([1])
            return _Computed()
        inputs = prepare(plan, self._slots)
        batch = self._batch(inputs)
        hidden = self._model.forward(batch)
        return _Computed(
            inputs=inputs,
            logits=self._logits(hidden, batch) if inputs.sample_slots else None,
            chunks=score_prompts(self._model, batch, hidden, plan, self._slots),
        )

    @torch.inference_mode()
    def dummy(self, counts: Sequence[int]) -> None:
        """A whole step of rows with `counts` tokens each, on the null block; leaves no trace."""
        inputs = dummy_inputs(counts, self._slots.groups, self._slots.device)
        batch = self._batch(inputs)
        logits = self._logits(self._model.forward(batch), batch)
        sample(logits, SamplingRows(count=len(counts)))

    def _batch(self, inputs: StepInputs) -> Batch:
        groups = tuple(
            GroupBatch(kernel, kernel.plan(step))
            for kernel, step in zip(self._kernels, inputs.groups, strict=True)
        )
        return Batch(
            ids=inputs.ids,
            positions=inputs.positions,
            logit_rows=inputs.logit_rows,
            groups=groups,
            kv=self.storage,
        )

    def _logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``[L, vocab]`` of the rows that sample."""
        logits = self._model.logits(hidden[batch.logit_rows], batch)
        assert logits.shape[1] == self._limits.vocab_size
        return logits


@attrs.frozen(eq=False)
class _Computed:
    """What the forward pass left for sampling; empty for a plan without rows."""

    inputs: StepInputs | None = None
    logits: torch.Tensor | None = None
    chunks: Sequence[PromptChunk] = ()


class StepInFlight:
    """`api.executor.Pending` of one plan."""

    def __init__(
        self, slots: Slots, plan: StepPlan, computed: _Computed, transfers: TransferReport | None
    ) -> None:
        self._slots = slots
        self._step_id = plan.step_id
        self._computed = computed
        self._transfers = transfers
        self._sampled: Sampled | None = None

    @torch.inference_mode()
    def sample(self, late: LateInputs) -> None:
        """Choose a token per row that samples, and write it where the next step reads it."""
        assert late.step_id == self._step_id, (late.step_id, self._step_id)
        assert self._sampled is None, "sampled twice"
        inputs, logits = self._computed.inputs, self._computed.logits
        if inputs is None or logits is None:
            return
        rows = self._slots.sampling.rows(inputs.sample_slots, inputs.sample_positions, late.masks)
        self._sampled = sample(logits, rows)
        self._slots.append(inputs.sample_slots, inputs.sample_positions, self._sampled.ids)

    def result(self) -> StepResult:
        """Tokens and log-probabilities on the host; a failed row has no tokens, and says why."""
        result = StepResult(self._step_id, slots=[], token_ids=[], transfers=self._transfers)
        if self._sampled is not None and self._computed.inputs is not None:
            _add_tokens(result, self._computed.inputs.sample_slots, self._sampled)
        for chunk in self._computed.chunks:
            if bool(chunk.finite):
                result.prompt_logprobs[chunk.slot] = chunk.to_host()
            else:
                result.failed[chunk.slot] = FAULTS[1]
        return result


def _add_tokens(result: StepResult, slots: list[int], sampled: Sampled) -> None:
    status = sampled.status.tolist()
    result.slots = slots
    result.token_ids = [
        [] if fault else [token] for token, fault in zip(sampled.ids.tolist(), status, strict=True)
    ]
    result.failed = {slot: FAULTS[s] for slot, s in zip(slots, status, strict=True) if s}
    if sampled.logprobs is not None:
        entries = zip(sampled.logprob_rows, sampled.logprobs.to_host(), strict=True)
        result.logprobs = {slots[row]: [entry] for row, entry in entries if not status[row]}
