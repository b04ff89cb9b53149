"""Runs plans on one device: block copies, the forward pass, sampling, results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.kv import KVCacheConfig, KVTensors
from pegboard.api.model import Batch, LanguageModel
from pegboard.api.platform import Execution, Immediate, Mark
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.api.transfer import TransferReport
from pegboard.config.logits import LogitsRoster
from pegboard.errors import UnsupportedError
from pegboard.logging import get_logger
from pegboard.nn import OpTable
from pegboard.nn.transit import send
from pegboard.runner.attention import GroupAttention, plan_groups
from pegboard.runner.inputs import StepInputs, dummy_inputs, prepare
from pegboard.runner.prompt_logprobs import PromptChunk, score_prompts
from pegboard.runner.recorded import DecodeRecordings
from pegboard.runner.slots import Limits, Slots
from pegboard.runner.storage import copy_blocks
from pegboard.runner.transfers import NoWorker
from pegboard.sampling.rows import SamplingRows
from pegboard.sampling.sampler import FAULTS, Sampled, sample

__all__ = ["ModelRunner", "StepInFlight"]

Ints = np.ndarray[Any, np.dtype[np.int64]]
Choose = Callable[..., tuple[torch.Tensor, torch.Tensor]]


class ModelRunner:
    """A model, its cache and the running requests. Knows KV groups, never model names."""

    def __init__(
        self,
        model: LanguageModel,
        *,
        limits: Limits,
        cache: KVCacheConfig,
        attention: Sequence[GroupAttention],
        storage: Mapping[str, KVTensors],
        device: torch.device,
        ops: OpTable | None = None,
        execution: Execution | None = None,
        processors: LogitsRoster | None = None,
    ) -> None:
        """`attention` has the kernels of the cache's groups, in order; `storage` is by slot key;
        `processors` may change logits.

        Without `execution` the device is one whose calls return when their work is done.
        """
        self._model = model
        self._limits = limits
        self._attention = tuple(attention)
        self._ops = ops or OpTable.plain()
        self._choose = self._ops.widest("choose")
        self._execution: Execution = execution or Immediate()
        self._recordings: DecodeRecordings | None = None
        self.cache = cache
        self.storage = storage
        self._slots = Slots(limits, cache.groups, device, processors)
        self._worker = NoWorker()

    def connect(self, worker: NoWorker) -> None:
        """From now on steps call the KV connector's worker half."""
        self._worker = worker
        wrapped = [worker.wrap(group.kernel) for group in self._attention]
        pairs = list(zip(self._attention, wrapped, strict=True))
        if any(group.kernel is not kernel for group, kernel in pairs):
            self._recordings = None  # what the host does around a layer cannot be recorded
        self._attention = tuple(attrs.evolve(group, kernel=kernel) for group, kernel in pairs)

    @torch.inference_mode()
    def record(self) -> None:
        """Record the decode steps, where device, kernels and model can be recorded."""
        groups = self._slots.groups
        if self._choose is None or not DecodeRecordings.possible(
            self._execution, self._attention, groups
        ):
            return
        recordings = DecodeRecordings(
            self._model,
            self._slots,
            self._limits,
            self._attention,
            self.storage,
            self._ops,
            self._execution,
        )
        try:
            recordings.record()
        except UnsupportedError as error:
            # A number format or a kernel that asks the host in between: slower, and as right.
            get_logger("pegboard.runner").warning("steps are not recorded", reason=str(error))
            return
        self._recordings = recordings

    def recorded(self) -> dict[str, int]:
        """How many decode recordings there are, and how often one was replayed."""
        if self._recordings is None:
            return {"recordings": 0, "replays": 0}
        return {"recordings": len(self._recordings.sizes), "replays": self._recordings.replays}

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepInFlight:
        """Start a step: take differences, copy blocks, run the forward pass up to the logits."""
        self._slots.apply(plan)
        copy_blocks(plan.copies, self.storage.values())
        self._worker.begin(plan)
        computed = self._compute(plan)
        sampler = _Sampler(self._slots, self._choose, self._recordings)
        return StepInFlight(sampler, plan, computed, self._worker.end(plan), self._execution)

    def _compute(self, plan: StepPlan) -> _Computed:
        """The forward pass of a plan, up to the logits."""
        if not plan.rows:
            if plan.dummy:
                self.dummy([1])
            return _Computed()
        if self._recordings is not None and self._recordings.serves(plan):
            return _Computed.replayed(plan, self._recordings.forward(plan))
        inputs = prepare(plan, self._slots)
        batch = self._batch(inputs)
        hidden = self._model.forward(batch)
        return _Computed(
            slots=inputs.sample_slots,
            positions=inputs.sample_positions,
            logits=self._logits(hidden, batch) if inputs.sample_slots else None,
            chunks=score_prompts(self._model, batch, hidden, plan, self._slots),
        )

    @torch.inference_mode()
    def dummy(self, counts: Sequence[int], starts: Sequence[int] = ()) -> None:
        """A whole step of rows with `counts` tokens each, after `starts` others (default: none), on
        the null block; leaves no trace."""
        known = starts or [0] * len(counts)
        inputs = dummy_inputs(counts, known, self._slots.groups, self._slots.device)
        batch = self._batch(inputs)
        logits = self._logits(self._model.forward(batch), batch)
        sample(logits, SamplingRows(count=len(counts)))

    def _batch(self, inputs: StepInputs) -> Batch:
        return Batch(
            ids=inputs.ids,
            positions=inputs.positions,
            logit_rows=inputs.logit_rows,
            groups=plan_groups(self._attention, inputs.groups),
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

    slots: Sequence[int] = ()
    """Of the rows that sample."""
    positions: Ints = attrs.field(factory=lambda: np.zeros(0, np.int64))
    """Of the tokens to be sampled."""
    logits: torch.Tensor | None = None
    chunks: Sequence[PromptChunk] = ()
    recorded: bool = False
    """By a replay, which left the logits where the recorded choice reads them."""

    @classmethod
    def replayed(cls, plan: StepPlan, logits: torch.Tensor) -> _Computed:
        return cls(plan.slots, np.asarray(plan.starts, np.int64) + 1, logits, recorded=True)


@attrs.frozen(eq=False)
class _Sampler:
    """Chooses the tokens of a step and puts them where the next one reads them."""

    slots: Slots
    choose: Choose | None
    recordings: DecodeRecordings | None

    def sample(self, computed: _Computed, late: LateInputs) -> Sampled | None:
        """None if no row samples."""
        if computed.logits is None:
            return None
        slots, sampling = list(computed.slots), self.slots.sampling
        if late.token_ids and sampling.processors is not None:
            sampling.processors.learn(late.token_ids)
        if self.choose is not None and sampling.plain(slots, late.masks):
            return Sampled(*self._choose_plain(computed))
        rows = sampling.rows(slots, computed.positions, late.masks)
        sampled = sample(computed.logits, rows)
        self.slots.append(slots, computed.positions, sampled.ids)
        return sampled

    def _choose_plain(self, computed: _Computed) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.choose is not None
        assert computed.logits is not None
        if computed.recorded:
            assert self.recordings is not None
            return self.recordings.choose(len(computed.slots))
        places = np.asarray(computed.slots, np.int64)
        slots, positions = send(self.slots.device, places, computed.positions)
        columns = self.slots.sampling.columns(slots)
        ids, status = self.choose(computed.logits, *columns.arguments(positions))
        self.slots.write(slots, positions, ids)
        return ids, status


class StepInFlight:
    """`api.executor.Pending` of one plan."""

    def __init__(
        self,
        sampler: _Sampler,
        plan: StepPlan,
        computed: _Computed,
        transfers: TransferReport | None,
        execution: Execution,
    ) -> None:
        self._sampler = sampler
        self._step_id = plan.step_id
        self._computed = computed
        self._transfers = transfers
        self._execution = execution
        self._sampled: Sampled | None = None
        self._done: Mark | None = None

    @torch.inference_mode()
    def sample(self, late: LateInputs) -> None:
        """Choose a token per row that samples, and write it where the next step reads it."""
        assert late.step_id == self._step_id, (late.step_id, self._step_id)
        assert self._done is None, "sampled twice"
        sampled = self._sampler.sample(self._computed, late)
        # On the way to the host before the next step overwrites anything; logits may go.
        self._sampled = None if sampled is None else sampled.fetched()
        chunks = [chunk.fetched() for chunk in self._computed.chunks]
        self._computed = attrs.evolve(self._computed, logits=None, chunks=chunks)
        self._done = self._execution.mark()

    def result(self) -> StepResult:
        """Tokens and log-probabilities on the host; a failed row has no tokens, and says why."""
        assert self._done is not None, "the step was not sampled"
        self._done.wait()
        result = StepResult(self._step_id, slots=[], token_ids=[], transfers=self._transfers)
        if self._sampled is not None:
            _add_tokens(result, list(self._computed.slots), self._sampled)
        for chunk in self._computed.chunks:
            if bool(chunk.finite):
                result.prompt_logprobs[chunk.slot] = chunk.entries()
            else:
                result.failed[chunk.slot] = FAULTS[1]
        return result


def _add_tokens(result: StepResult, slots: list[int], sampled: Sampled) -> None:
    faults = {row: FAULTS[s] for row, s in enumerate(sampled.status.tolist()) if s}
    faults |= sampled.faults
    result.slots = slots
    result.token_ids = [
        [] if row in faults else [token] for row, token in enumerate(sampled.ids.tolist())
    ]
    result.failed = {slots[row]: fault for row, fault in faults.items()}
    if sampled.logprobs is not None:
        entries = zip(sampled.logprob_rows, sampled.logprobs.entries(), strict=True)
        result.logprobs = {slots[row]: [entry] for row, entry in entries if row not in faults}
