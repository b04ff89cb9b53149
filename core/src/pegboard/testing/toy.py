"""A deterministic executor without tensors: it stores ids where a model stores keys and values.

The toy model's next token is a checksum of every earlier token, *as read back from the block
table*. A wrong block, a stale slot or a block that was shared too early therefore changes the text,
and `ToyExecutor` compares what it reads with what the plans told it and fails at once.
"""

from __future__ import annotations

from array import array
from typing import Any
from zlib import crc32

import msgspec

from pegboard.api.executor import MemoryProfile, Pending
from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVSlot
from pegboard.api.params import SamplingParams
from pegboard.api.step import (
    BlockCopy,
    LateInputs,
    NewRow,
    PromptLogprobs,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from pegboard.api.views import EngineRequest

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
    reused_slots: int = 0
    resyncs: int = 0


def toy_token(ids: list[int], params: SamplingParams, seed: int = 0, child: int = 0) -> int:
    """The token after `ids`; with a temperature it depends on `seed` and `child` too."""
    data = array("q", ids).tobytes()
    key = b"" if params.greedy else array("q", [seed, child]).tobytes()
    return crc32(data, crc32(key)) % VOCABULARY


def toy_generate(request: EngineRequest) -> list[int]:
    """What a request alone must give: the oracle of scheduler tests."""
    params, prompt = request.params, len(request.prompt_ids)
    ends = frozenset(request.end_ids) | frozenset(params.stop_token_ids or ())
    ids = list(request.prompt_ids)
    while len(ids) - prompt < request.max_tokens:
        token = toy_token(ids, params, request.seed, request.child)
        ids.append(_masked(token, ids, prompt, params, ends))
        if ids[-1] in ends and len(ids) - prompt >= params.min_tokens:
            break
    return ids[prompt:]


def _masked(
    token: int, ids: list[int], prompt: int, params: SamplingParams, end_ids: frozenset[int]
) -> int:
    """`token`, or the next allowed one while end ids are masked."""
    if len(ids) - prompt < params.min_tokens:
        while token in end_ids:
            token = (token + 1) % VOCABULARY
    return token


class _Row:
    """A request on the device."""

    def __init__(self, new: NewRow) -> None:
        self.ids = [*new.prompt_ids, *new.output_ids]
        self.prompt = len(new.prompt_ids)
        self.params = new.params
        self.seed = new.seed
        self.child = new.child
        self.end_ids = frozenset(new.end_ids)
        self.tables = [list(blocks) for blocks in new.blocks]


class ToyExecutor:
    """Implements `pegboard.api.executor.Executor`.

    `groups` KV groups are declared, each storing the same ids. A row whose tokens hold `poison`
    fails.
    """

    def __init__(self, groups: int = 1, poison: int | None = None) -> None:
        self.counts = ToyCounts()
        self._groups = groups
        self._poison = poison
        self._storage: list[list[list[int]]] = []
        self._block_size = 0
        self._rows: dict[int, _Row] = {}
        self._used_slots: set[int] = set()

    def load(self) -> None:
        """Nothing to load."""

    def kv_slots(self) -> tuple[KVSlot, ...]:
        return tuple(
            KVSlot(layer, "self", FullAttentionSpec(1, layer + 1, "float32"))
            for layer in range(self._groups)
        )

    def profile(self) -> MemoryProfile:
        return MemoryProfile(total=1 << 30, free=1 << 30, weights=0, peak_activations=0)

    def allocate(self, cache: KVCacheConfig) -> None:
        self._block_size = cache.groups[0].block_size
        empty = [-1] * self._block_size
        self._storage = [[list(empty) for _ in range(cache.num_blocks)] for _ in cache.groups]

    def warm_up(self) -> None:
        """Nothing to warm."""

    def facts(self) -> dict[str, Any]:
        return {"device": "toy"}

    def close(self) -> None:
        self._rows.clear()

    def execute(self, plan: StepPlan) -> Pending:
        self._apply(plan)
        for copy in plan.copies:
            self._copy(copy)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            self._write(self._rows[slot], start, count)
        for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
            self._verify(slot, self._rows[slot], start + count)
        self._count(plan)
        return ToyPending(self, plan)

    def sample(self, plan: StepPlan) -> StepResult:
        """Tokens of a step whose keys and values are written."""
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
                self._sample_row(slot, row, stop, result)
        return result

    def _sample_row(self, slot: int, row: _Row, stop: int, result: StepResult) -> None:
        assert stop == len(row.ids), f"sampling after {stop} tokens of {len(row.ids)}"
        read = self._read(row, 0, stop)
        token = toy_token(read, row.params, row.seed, row.child)
        token = _masked(token, row.ids, row.prompt, row.params, row.end_ids)
        row.ids.append(token)
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

    def _copy(self, copy: BlockCopy) -> None:
        assert 0 not in (copy.source, copy.target), "the null block is copied"
        blocks = self._storage[copy.group]
        blocks[copy.target][: copy.tokens] = blocks[copy.source][: copy.tokens]

    def _write(self, row: _Row, start: int, count: int) -> None:
        """Store the ids of tokens ``start`` to ``start + count``."""
        size, stop = self._block_size, start + count
        assert stop <= len(row.ids), f"tokens up to {stop} planned, {len(row.ids)} known"
        for storage, table in zip(self._storage, row.tables, strict=True):
            position = start
            while position < stop:
                number, offset = divmod(position, size)
                taken = min(size - offset, stop - position)
                assert table[number] != 0, "the null block is written"
                block = storage[table[number]]
                block[offset : offset + taken] = row.ids[position : position + taken]
                position += taken

    def _read(self, row: _Row, group: int, stop: int) -> list[int]:
        """The first `stop` ids, from storage."""
        storage, size, read = self._storage[group], self._block_size, []
        for block in row.tables[group][: -(-stop // size)]:
            read += storage[block]
        return read[:stop]

    def _verify(self, slot: int, row: _Row, stop: int) -> None:
        """Everything that the row attends to is what its own tokens would have stored."""
        for group in range(len(self._storage)):
            read = self._read(row, group, stop)
            assert read == row.ids[:stop], (
                f"slot {slot}, group {group}: block table {row.tables[group]} gives {read}, "
                f"expected {row.ids[:stop]}"
            )

    def _count(self, plan: StepPlan) -> None:
        counts = self.counts
        counts.steps += 1
        counts.rows += plan.rows
        counts.tokens += plan.tokens
        counts.shared_steps += plan.rows > 1
        counts.copies += len(plan.copies)
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
        self._result = self._executor.sample(self._plan)

    def result(self) -> StepResult:
        assert self._result is not None, "the step was not sampled"
        return self._result
