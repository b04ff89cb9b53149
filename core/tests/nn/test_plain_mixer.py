"""The plain kernel of ``gated-linear``: which states it reads, and which it writes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import torch
import torch.nn.functional as F

from pegboard.api.attention import AttentionContext
from pegboard.api.kv import KVCacheConfig, KVGroup, KVLayout, KVSlot, KVTensors
from pegboard.api.recurrent import GatedLinearInputs, GatedLinearLayer, RecurrentStep
from pegboard.nn import RecurrentShape
from pegboard.nn.mixers import PlainGatedLinear
from pegboard.nn.scan import causal_conv, scan_stepwise
from pegboard.runner.storage import allocate_storage

CPU = torch.device("cpu")
SHAPE = RecurrentShape(8, heads=2, key_size=3, value_size=5, conv_width=4)
LAYER = GatedLinearLayer(2, 3, 5, 4)
BLOCKS = 12


@attrs.frozen
class Row:
    """`count` tokens of one request from `start` on, and where its states are."""

    start: int
    count: int
    read: int
    write: int
    borders: Sequence[tuple[int, int]] = ()
    """``(tokens of the row, block)``"""


class Case:
    """One layer; every request has the same random inputs, so that starts say what is expected."""

    def __init__(self) -> None:
        spec = SHAPE.spec().with_dtype("float32")
        group = KVGroup(0, spec, 8, ("0.state",))
        cache = KVCacheConfig((group,), BLOCKS)
        layouts = [KVLayout("state", ("block",))]
        storage = allocate_storage([KVSlot(0, "state", spec)], cache, layouts, CPU)
        self.kv: KVTensors = storage["0.state"]
        self.kv.data.fill_(255)  # not-a-number in every state
        self.kernel = PlainGatedLinear(AttentionContext(group, torch.float32, CPU, 8, 64))
        make = torch.Generator().manual_seed(0)
        self.mixed = torch.randn(60, LAYER.channels, generator=make)
        self.log_decay = -0.2 * torch.rand(60, LAYER.heads, generator=make)
        self.weight = torch.randn(LAYER.channels, LAYER.conv_width, generator=make)

    def run(self, *rows: Row) -> list[torch.Tensor]:
        step = self.step(rows)
        spans = [slice(row.start, row.start + row.count) for row in rows]
        inputs = GatedLinearInputs(
            torch.cat([self.mixed[span] for span in spans]),
            torch.cat([self.log_decay[span] for span in spans]),
            self.weight,
        )
        out = self.kernel.forward(LAYER, inputs, self.kv, self.kernel.plan(step))
        return list(out.split([row.count for row in rows]))

    @staticmethod
    def step(rows: Sequence[Row]) -> RecurrentStep:
        counts = [row.count for row in rows]
        begun = [row.start > 0 for row in rows]
        blocks = [block for row in rows for _, block in row.borders]
        return RecurrentStep(
            query_lens=counts,
            has_state=begun,
            query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
            has_state_device=torch.tensor(begun),
            reads=torch.tensor([row.read for row in rows]),
            writes=torch.tensor([row.write for row in rows]),
            borders=[[tokens for tokens, _ in row.borders] for row in rows],
            border_blocks=torch.tensor(blocks, dtype=torch.int64),
        )

    def expected(self) -> torch.Tensor:
        """The whole sequence from nothing: ``[60, heads, value_size]``."""
        past = torch.zeros(LAYER.conv_width - 1, LAYER.channels)
        parts = F.silu(causal_conv(self.mixed, past, self.weight)).split(SHAPE.parts, -1)
        heads = [part.unflatten(-1, (LAYER.heads, -1)) for part in parts]
        return scan_stepwise(*heads, self.log_decay, torch.zeros(2, 3, 5))[0]

    def check(self, found: torch.Tensor, start: int) -> None:
        wanted = self.expected()[start : start + len(found)]
        assert torch.allclose(found, wanted, atol=2e-5), f"tokens from {start} on differ"


@pytest.mark.parametrize("chunks", [[60], [1] * 60, [1, 2, 3, 54], [16, 1, 1, 30, 12]])
def test_a_request_in_any_chunks_gives_what_the_whole_gives(chunks: list[int]) -> None:
    case, start = Case(), 0
    for number, count in enumerate(chunks):
        read, write = 1 + number % 3, 1 + (number + 1) % 3
        (found,) = case.run(Row(start, count, read, write))
        case.check(found, start)
        start += count


def test_a_state_may_be_overwritten_in_its_place() -> None:
    case = Case()
    for start, count in ((0, 5), (5, 1), (6, 7)):
        (found,) = case.run(Row(start, count, 4, 4))
        case.check(found, start)


def test_rows_of_all_sorts_in_one_step() -> None:
    case = Case()
    case.run(Row(0, 20, 0, 1), Row(0, 7, 0, 2), Row(0, 1, 0, 3))
    rows = (Row(20, 1, 1, 1), Row(0, 1, 0, 5), Row(7, 9, 2, 6), Row(1, 1, 3, 7), Row(0, 3, 0, 8))
    for row, found in zip(rows, case.run(*rows), strict=True):
        case.check(found, row.start)


def test_a_request_that_begins_reads_nothing_although_its_block_holds_no_numbers() -> None:
    case = Case()
    for count in (1, 6):
        (found,) = case.run(Row(0, count, 9, 9))
        case.check(found, 0)


def test_states_at_borders_inside_a_step_can_be_resumed_from() -> None:
    case = Case()
    borders = ((8, 2), (16, 3), (24, 4))
    first, second = case.run(Row(0, 30, 0, 1, borders), Row(0, 9, 0, 5, ((8, 6),)))
    case.check(first, 0)
    case.check(second, 0)
    for tokens, block in (*borders, (30, 1), (9, 5), (8, 6)):
        (found,) = case.run(Row(tokens, 12, block, 7))
        case.check(found, tokens)


def test_all_states_are_read_before_one_is_written() -> None:
    case = Case()
    case.run(Row(0, 10, 0, 1))
    for counts in ((1, 1), (4, 1), (1, 4), (4, 4)):
        case.run(Row(0, 10, 0, 1))
        rows = (Row(10, counts[0], 1, 2), Row(0, counts[1], 0, 1))
        for row, found in zip(reversed(rows), case.run(*reversed(rows)), strict=True):
            case.check(found, row.start)


def test_only_the_blocks_that_the_step_names_are_written() -> None:
    case = Case()
    case.run(Row(0, 20, 0, 3, ((8, 5),)), Row(0, 1, 0, 7))
    touched = ~case.kv.data.eq(255).all(1)
    assert touched.nonzero().flatten().tolist() == [3, 5, 7]
