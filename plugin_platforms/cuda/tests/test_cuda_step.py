"""The inputs of a recorded decode step, against the plain op."""

from __future__ import annotations

import pytest
import torch

from pegboard.nn.step_ops import decode_inputs as plain
from pegboard_platform_cuda.kernels.step import decode_inputs

LINES, TOKENS = 7, 90
SPARE = LINES - 1


def case(rows: int, sizes: list[int], seed: int):
    """Random requests in distinct slots; some rows are empty, some get a new block."""
    draws = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, TOKENS, (rows,), generator=draws)
    slots = torch.randperm(SPARE, generator=draws)[:rows]
    empty = torch.rand(rows, generator=draws) < 0.25
    tokens = torch.randint(0, 1000, (LINES, TOKENS), generator=draws).int()
    columns = torch.zeros((3 + 4 * len(sizes), rows), dtype=torch.int32)
    columns[0] = torch.where(empty, SPARE, slots)
    columns[1] = torch.where(empty, 0, lengths - 1)
    columns[2] = torch.where(empty, 0, lengths)
    tables = []
    for group, size in enumerate(sizes):
        tables.append(torch.randint(1, 99, (LINES, -(-TOKENS // size)), generator=draws).int())
        place = 3 + 4 * group
        fresh = (torch.rand(rows, generator=draws) < 0.5) & ~empty
        columns[place] = torch.where(fresh, slots, SPARE)
        columns[place + 1] = torch.where(fresh, (lengths - 1) // size, 0)
        columns[place + 2] = torch.where(fresh, 100 + torch.arange(rows), 0)
        columns[place + 3, 0] = 7 + group
    return columns, tokens, tables


@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("sizes", [[16], [4, 8], [1]])
@pytest.mark.parametrize("seed", range(4))
def test_inputs_and_block_tables_are_those_of_the_plain_op(rows, sizes, seed):
    columns, tokens, tables = case(rows, sizes, seed)
    expected_tables = [table.clone() for table in tables]
    expected = plain(columns, tokens, expected_tables, sizes)
    found = decode_inputs(columns, tokens, tables, sizes)
    for name in ("slots", "positions", "ids", "kv_lens"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    for group, size in enumerate(sizes):
        assert found.prefixes[group].tolist() == expected.prefixes[group].tolist() == [7 + group]
        assert torch.equal(found.places[group], expected.places[group])
        # The spare line is written by several rows, and read by nobody.
        assert torch.equal(tables[group][:SPARE], expected_tables[group][:SPARE])
        for row, length in enumerate(found.kv_lens.tolist()):
            used = -(-length // size)
            ours, theirs = found.tables[group][row, :used], expected.tables[group][row, :used]
            assert torch.equal(ours, theirs)
