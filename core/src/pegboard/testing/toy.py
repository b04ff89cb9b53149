"""A deterministic executor without tensors: it stores ids where a model stores keys and values.

The toy model's next token is a checksum of every earlier token. Before it is computed,
`ToyExecutor` reads back from the block tables, in every KV group, all that the group's kind may
attend to, and compares it with what the plans told: a wrong block, a stale slot, a block that was
given up or shared too early fails at once. See `pegboard.testing.toy_cache`.
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence
from typing import Any
from zlib import crc32

import msgspec

from pegboard.api.executor import MemoryProfile, Pending
from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVSlot, KVSpec
from pegboard.api.params import SamplingParams
from pegboard.api.step import (
    LateInputs,
    NewRow,
    PromptLogprobs,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from pegboard.api.transfer import ConnectorLink
from pegboard.api.views import EngineRequest
from pegboard.errors import UnsupportedError
from pegboard.testing.scripted_masks import Rule, allowed_ids
from pegboard.testing.toy_cache import RowCache, ToyCache, ToyRow

__all__ = ["ToyCounts", "ToyExecutor", "toy_generate", "toy_token"]

VOCABULARY = 97


class ToyCounts(msgspec.Struct):
    """What a run exercised, so that a test can demand it."""

    steps: int = 0
    rows: int = 0
    tokens: int = 0
    """Tokens computed."""
    shared_steps: int = 0
    """Steps with more than one row."""
    prefill_chunks: int = 0
    """Rows that computed a part of a prompt and did not reach its end."""
    resumed: int = 0
    """New rows that bring sampled tokens: requests that were preempted."""
    hits: int = 0
    """New rows that begin with blocks they did not compute."""
    copies: int = 0
    state_copies: int = 0
    """Copies of recurrent state among `copies`."""
    reused_slots: int = 0
    resyncs: int = 0


def toy_token(ids: list[int], params: SamplingParams, seed: int = 0, child: int = 0) -> int:
    """The token after `ids`; with a temperature it depends on `seed` and `child` too."""
    data = array("q", ids).tobytes()
    key = b"" if params.greedy else array("q", [seed, child]).tobytes()
    return crc32(data, crc32(key)) % VOCABULARY


def toy_generate(request: EngineRequest, rule: Rule | None = None) -> list[int]:
    """What a request alone must give, under a grammar's `rule` if it has one: the oracle of
    scheduler tests."""
    params, prompt = request.params, len(request.prompt_ids)
    ends = frozenset(request.end_ids) | frozenset(params.stop_token_ids or ())
    ids = list(request.prompt_ids)
    while len(ids) - prompt < request.max_tokens:
        likeliest = toy_token(ids, params, request.seed, request.child)
        early = len(ids) - prompt < params.min_tokens
        token = _masked(likeliest, ends if early else (), rule and rule(ids[prompt:]))
        assert token is not None, "the rule allows no token"
        ids.append(token)
        if ids[-1] in ends and len(ids) - prompt >= params.min_tokens:
            break
    return ids[prompt:]


def _masked(
    token: int, banned: Container[int], allowed: Container[int] | None = None
) -> int | None:
    """`token`, or the next one that may be sampled; None if there is none."""
    for distance in range(VOCABULARY):
        candidate = (token + distance) % VOCABULARY
        if candidate not in banned and (allowed is None or candidate in allowed):
            return candidate
    return None


class _Row(ToyRow):
    """A request on the device."""

    def __init__(self, new: NewRow) -> None:
        super().__init__([*new.prompt_ids, *new.output_ids], new.blocks)
        self.prompt = len(new.prompt_ids)
        self.params = new.params
        self.seed = new.seed
        self.child = new.child
        self.end_ids = frozenset(new.end_ids)
        self.allowed: frozenset[int] | None = None
        """By a grammar, in the step at hand."""


class ToyExecutor:
    """Implements `pegboard.api.executor.Executor`.

    The model has a layer per entry of `specs`; without them, `groups` layers of full attention,
    each a group of its own. A row whose tokens hold `poison` fails.
    """

    max_in_flight = 2

    def __init__(
        self, groups: int = 1, poison: int | None = None, specs: Sequence[KVSpec] = ()
    ) -> None:
        self.counts = ToyCounts()
        self._specs = specs or [
            FullAttentionSpec(1 << layer, 1 << (groups - layer), "float32")
            for layer in range(groups)
        ]
        self._poison = poison
        self._cache: RowCache | None = None
        self._rows: dict[int, _Row] = {}
        self._used_slots: set[int] = set()

    def load(self) -> None:
        """Nothing to load."""

    def kv_slots(self) -> tuple[KVSlot, ...]:
        return tuple(KVSlot(layer, "self", spec) for layer, spec in enumerate(self._specs))

    def profile(self) -> MemoryProfile:
        return MemoryProfile(total=1 << 30, free=1 << 30, weights=0, peak_activations=0)

    def allocate(self, cache: KVCacheConfig) -> None:
        self._cache = ToyCache(cache)

    def warm_up(self) -> None:
        """Nothing to warm."""

    def connect(self) -> ConnectorLink:
        """There is nothing to attach to; see `pegboard.testing.toy_pages`."""
        raise UnsupportedError("the toy executor has no storage for a KV connector")

    def facts(self) -> dict[str, Any]:
        return {"device": "toy"}

    def close(self) -> None:
        self._rows.clear()

    def execute(self, plan: StepPlan) -> Pending:
        assert self._cache is not None, "allocate() comes first"
        self._apply(plan)
        self._check_common(plan)
        for copy in plan.copies:
            self._cache.copy(copy)
        rows = [
            (self._rows[slot], start, start + count)
            for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True)
        ]
        for row, start, _ in rows:
            self._cache.recall(row, start)
        for row, start, stop in rows:
            self._cache.write(row, start, stop)
        for slot, (row, start, stop) in zip(plan.slots, rows, strict=True):
            self._cache.verify(slot, row, start, stop)
        self._count(plan)
        return ToyPending(self, plan)

    def written(self, plan: StepPlan) -> set[int]:
        """Blocks that a plan writes, before a later one is executed."""
        assert self._cache is not None
        targets = {copy.target for copy in plan.copies}
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            targets |= self._cache.written(self._rows[slot], start, start + count)
        return targets

    def sample(self, plan: StepPlan, late: LateInputs) -> StepResult:
        """Tokens of a step whose keys and values are written."""
        assert late.step_id == plan.step_id, "late inputs of another step"
        result = StepResult(plan.step_id, [], [])
        for number, slot in enumerate(plan.slots):
            row, start = self._rows[slot], plan.starts[number]
            stop = start + plan.counts[number]
            if self._poison in row.ids[:stop]:
                result.failed[slot] = f"token {self._poison} is poison"
                # A step that was planned ahead may go on from here; its result will be ignored.
                row.ids += [0] * plan.samples[number]
                continue
            if row.params.prompt_logprobs is not None and start + 1 < row.prompt:
                result.prompt_logprobs[slot] = _scores(row, start + 1, stop)
            if plan.samples[number]:
                mask = late.masks.get(slot)
                row.allowed = None if mask is None else allowed_ids(mask)
                self._sample_row(slot, row, stop, result)
        return result

    def _sample_row(self, slot: int, row: _Row, stop: int, result: StepResult) -> None:
        assert stop == len(row.ids), f"sampling after {stop} tokens of {len(row.ids)}"
        likeliest = toy_token(row.ids, row.params, row.seed, row.child)
        early = stop - row.prompt < row.params.min_tokens
        token = _masked(likeliest, row.end_ids if early else (), row.allowed)
        row.ids.append(token or 0)
        if token is None:
            result.failed[slot] = "no token is left to choose"
            return
        result.slots.append(slot)
        result.token_ids.append([token])
        if row.params.logprobs is not None:
            result.logprobs[slot] = [TokenLogprobs([token], [-1.0 / (1 + token)], 1)]

    def _apply(self, plan: StepPlan) -> None:
        """Bring slots and block tables up to date."""
        if plan.resync:
            self._rows.clear()
            self.counts.resyncs += 1
        for slot in plan.freed_slots:
            del self._rows[slot]
        for new in plan.new_rows:
            assert new.slot not in self._rows, f"slot {new.slot} is in use"
            self.counts.reused_slots += new.slot in self._used_slots
            self.counts.resumed += bool(new.output_ids)
            self.counts.hits += any(new.blocks)
            self._used_slots.add(new.slot)
            self._rows[new.slot] = _Row(new)
        for slot, new_blocks in zip(plan.slots, plan.new_blocks, strict=True):
            for table, blocks in zip(self._rows[slot].tables, new_blocks, strict=True):
                table.extend(blocks)

    def _check_common(self, plan: StepPlan) -> None:
        """What the rows are said to have in common, they have, and none writes it."""
        assert self._cache is not None
        for group, length in enumerate(plan.common_prefix):
            tables = {tuple(self._rows[slot].tables[group][:length]) for slot in plan.slots}
            tokens = length * self._cache.block_size(group)
            assert len(tables) <= 1, f"group {group}: not all rows begin with {length} blocks"
            assert all(start >= tokens for start in plan.starts), f"group {group}: written"

    def _count(self, plan: StepPlan) -> None:
        counts = self.counts
        counts.steps += 1
        counts.rows += plan.rows
        counts.tokens += plan.tokens
        counts.shared_steps += plan.rows > 1
        counts.copies += len(plan.copies)
        assert self._cache is not None
        counts.state_copies += sum(self._cache.holds_state(copy.group) for copy in plan.copies)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            counts.prefill_chunks += start + count < self._rows[slot].prompt


def _scores(row: _Row, first: int, stop: int) -> PromptLogprobs:
    """Made-up log-probabilities of the prompt tokens that a chunk ending before `stop` predicts."""
    last = min(stop, row.prompt - 1)
    entries = [
        TokenLogprobs([row.ids[position]], [-float(crc32(array("q", row.ids[:position])) % 100)], 1)
        for position in range(first, last + 1)
    ]
    return PromptLogprobs(first, entries)


class ToyPending:
    """Implements `pegboard.api.executor.Pending`."""

    def __init__(self, executor: ToyExecutor, plan: StepPlan) -> None:
        self._executor = executor
        self._plan = plan
        self._result: StepResult | None = None

    def sample(self, late: LateInputs) -> None:
        assert self._result is None, "a step is sampled once"
        self._result = self._executor.sample(self._plan, late)

    def result(self) -> StepResult:
        assert self._result is not None, "the step was not sampled"
        return self._result
