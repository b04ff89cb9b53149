"""A toy model that shows whether every token was read from the right place, and a step driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.attention import (
    AttentionBackend,
    AttentionInputs,
    AttentionLayer,
    AttentionStep,
)
from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVGroup, KVLayout, KVSlot, KVTensors
from pegboard.api.model import Batch
from pegboard.api.params import SamplingParams
from pegboard.api.step import BlockCopy, LateInputs, NewRow, StepPlan, StepResult
from pegboard.nn.ops import store_kv
from pegboard.runner.attention import GroupAttention
from pegboard.runner.runner import ModelRunner, StepInFlight
from pegboard.runner.slots import Limits
from pegboard.runner.storage import allocate_storage

VOCAB, STATES, POISON = 31, 997, 30
BLOCK = 4
SPEC = FullAttentionSpec(kv_heads=1, head_size=2, dtype="float32")
TOKEN_MAJOR = KVLayout("token-major", ("kv", "block", "token", "head", "dim"))
BLOCK_LAST = KVLayout("block-last", ("token", "kv", "head", "dim", "block"))
LAYER = AttentionLayer(heads=1, kv_heads=1, head_size=2, scale=1.0)
CPU = torch.device("cpu")
SUM = AttentionBackend(name="sum", kernel="nowhere:SumKernel")


class SumKernel:
    """Adds up ``(id + 1) * (position + 1)`` of all known tokens, read back from the blocks.

    Exact in float32.
    """

    def plan(self, step: AttentionStep) -> AttentionStep:
        for row, (length, blocks) in enumerate(zip(step.kv_lens, step.block_lists, strict=True)):
            used = -(-length // BLOCK)
            assert step.block_table[row, :used].tolist() == list(blocks[:used])
            assert not step.block_table[row, len(blocks) :].any(), "unused places must hold 0"
            begin, end = step.query_starts[row : row + 2].tolist()
            assert end - begin == step.query_lens[row]
        assert step.kv_lens_device.tolist() == list(step.kv_lens)
        return step

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, step: AttentionStep
    ) -> torch.Tensor:
        data = kv.data.permute(*(kv.layout.axes.index(axis) for axis in TOKEN_MAJOR.axes))
        blocks, offsets = step.slots // BLOCK, step.slots % BLOCK
        data[0, blocks, offsets] = inputs.key
        data[1, blocks, offsets] = inputs.value
        out = torch.zeros_like(inputs.query)
        for row, table in enumerate(step.block_table.long()):
            length = step.kv_lens[row]
            keys = data[0, table].flatten(0, 1)[:length, 0, 0]
            values = data[1, table].flatten(0, 1)[:length, 0, 0]
            sums = (keys * values).cumsum(0)
            begin, end = step.query_starts[row : row + 2].tolist()
            out[begin:end, 0, 0] = sums[length - (end - begin) :]
        return out


class SumModel:
    """Two layers that must agree; logits are a random table's line, chosen by the sum."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(9)
        self.table = torch.randn((STATES, VOCAB), generator=generator)
        self.table[:, POISON] = -20.0
        self.forwards = 0

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        self.forwards += 1
        ids = (batch.ids + 1).float()[:, None, None].expand(-1, 1, 2)
        where = (batch.positions + 1).float()[:, None, None].expand(-1, 1, 2)
        sums = []
        for kv in batch.kv.values():
            group = batch.groups[kv.group]
            if group.write_slots is not None:
                store_kv(ids, where, kv, group.write_slots)
            inputs = AttentionInputs(ids, ids, where)
            sums.append(group.kernel.forward(LAYER, inputs, kv, group.metadata))
        assert all(torch.allclose(sums[0], other, 0, 0, equal_nan=True) for other in sums)
        hidden = sums[0][:, 0]
        hidden[batch.ids == POISON] = float("nan")
        return hidden

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        assert len(hidden) == len(batch.logit_rows)
        broken = hidden[:, 0].isnan()
        logits = self.table[hidden[:, 0].nan_to_num().long() % STATES].clone()
        logits[broken] = float("nan")
        return logits

    def expected(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits after `ids`, without any cache."""
        total = sum((token + 1) * (place + 1) for place, token in enumerate(ids))
        return self.table[total % STATES]

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """What a greedy request must give."""
        known = list(prompt)
        for _ in range(count):
            known.append(int(self.expected(known).argmax()))
        return known[len(prompt) :]


@attrs.define(eq=False)
class Driver:
    """Plans steps by hand: blocks are handed out from a counter, never twice."""

    runner: ModelRunner
    model: SumModel
    storage: Mapping[str, KVTensors]
    groups: int = 1
    next_block: int = 1
    steps: int = 0
    known: dict[int, int] = attrs.field(factory=dict)
    computed: dict[int, int] = attrs.field(factory=dict)
    held: dict[int, list[int]] = attrs.field(factory=dict)
    news: list[NewRow] = attrs.field(factory=list)
    freed: list[int] = attrs.field(factory=list)
    copies: list[BlockCopy] = attrs.field(factory=list)
    resync: bool = False

    def add(
        self, slot: int, prompt: Sequence[int], output: Sequence[int] = (), **params: Any
    ) -> None:
        """Let a request in at the next step.

        Own names: child, end_ids, blocks and computed (cache hits).
        """
        own = {name: params.pop(name) for name in ("child", "end_ids") if name in params}
        blocks = list(params.pop("blocks", []))
        self.computed[slot] = params.pop("computed", 0)
        params.setdefault("temperature", 0.0)
        row = NewRow(
            slot=slot,
            prompt_ids=list(prompt),
            output_ids=list(output),
            params=SamplingParams(**params),
            seed=params.get("seed", 0),
            child=own.get("child", 0),
            end_ids=own.get("end_ids", []),
            blocks=[list(blocks) for _ in range(self.groups)],
        )
        self.news.append(row)
        self.known[slot], self.held[slot] = len(prompt) + len(output), blocks

    def free(self, slot: int) -> None:
        """Take a request out at the next step."""
        self.freed.append(slot)

    def plan(self, counts: Mapping[int, int]) -> StepPlan:
        """A step of ``{slot: tokens}``."""
        slots = list(counts)
        starts = [self.computed[slot] for slot in slots]
        plan = StepPlan(
            step_id=self.steps,
            slots=slots,
            starts=starts,
            counts=list(counts.values()),
            samples=[self.computed[s] + n == self.known[s] for s, n in counts.items()],
            new_blocks=[self._grow(slot, n) for slot, n in counts.items()],
            new_rows=self.news,
            freed_slots=self.freed,
            copies=self.copies,
            resync=self.resync,
        )
        for slot, samples in zip(slots, plan.samples, strict=True):
            self.computed[slot] += counts[slot]
            self.known[slot] += samples
        self.steps += 1
        self.news, self.freed, self.copies, self.resync = [], [], [], False
        return plan

    def start(
        self, counts: Mapping[int, int], masks: Mapping[int, bytes] | None = None
    ) -> StepInFlight:
        """Execute and sample, without waiting for the result."""
        plan = self.plan(counts)
        pending = self.runner.execute(plan)
        pending.sample(LateInputs(step_id=plan.step_id, masks=dict(masks or {})))
        return pending

    def step(
        self, counts: Mapping[int, int], masks: Mapping[int, bytes] | None = None
    ) -> StepResult:
        return self.start(counts, masks).result()

    def generate(self, slot: int, count: int, chunk: int = 10**9) -> list[int]:
        """Run one request alone for `count` more tokens, its known ones in chunks."""
        found: list[int] = []
        while len(found) < count:
            result = self.step({slot: min(chunk, self.known[slot] - self.computed[slot])})
            assert not result.failed
            for tokens in result.token_ids:
                found += tokens
        return found

    def _grow(self, slot: int, count: int) -> list[list[int]]:
        need = -(-(self.computed[slot] + count) // BLOCK) - len(self.held[slot])
        new = list(range(self.next_block, self.next_block + need))
        self.next_block += need
        self.held[slot] += new
        return [list(new) for _ in range(self.groups)]


@pytest.fixture
def make_driver():
    """``make_driver(layout, groups)``: 6 slots, a toy model of two layers per group."""

    def make(
        layout: KVLayout = TOKEN_MAJOR,
        groups: int = 1,
        kernel: Callable[[], Any] = SumKernel,
        backend: Mapping[str, Any] | None = None,
        **runner_options: Any,
    ) -> Driver:
        described = attrs.evolve(SUM, **(backend or {}))
        made = tuple(
            KVGroup(i, SPEC, BLOCK, (f"{2 * i}.self", f"{2 * i + 1}.self")) for i in range(groups)
        )
        slots = [KVSlot(i, "self", SPEC) for i in range(2 * groups)]
        cache = KVCacheConfig(made, num_blocks=200)
        storage = allocate_storage(slots, cache, [layout] * groups, CPU)
        for tensors in storage.values():
            tensors.data.fill_(float("nan"))  # what no one wrote must not be read
            tensors.data.select(layout.axes.index("block"), 0).zero_()
        model = SumModel()
        runner = ModelRunner(
            model,
            limits=Limits(max_rows=6, max_tokens=256, max_model_len=120, vocab_size=VOCAB),
            cache=cache,
            attention=[GroupAttention(described, kernel(), layout) for _ in made],
            storage=storage,
            device=CPU,
            **runner_options,
        )
        return Driver(runner, model, storage, groups)

    return make


@pytest.fixture
def driver(make_driver) -> Driver:
    return make_driver()


@pytest.fixture
def block_last() -> KVLayout:
    """A layout in which neither blocks nor tokens come first."""
    return BLOCK_LAST
