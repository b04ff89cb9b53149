"""Pieces and tiles cover what each row sees, once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pegboard.api.attention import AttentionContext, AttentionStep
from pegboard.api.kv import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVGroup,
    KVSpec,
    SlidingWindowSpec,
)
from pegboard_attention_triton.kernel import TritonKernel
from pegboard_attention_triton.plan import tiles_of

SPECS: list[KVSpec] = [
    FullAttentionSpec(8, 64, "bfloat16"),
    SlidingWindowSpec(8, 64, "bfloat16", window=700),
    ChunkedLocalSpec(8, 64, "bfloat16", chunk=600),
]


def step_of(query_lens: list[int], kv_lens: list[int]) -> AttentionStep:
    starts = torch.tensor([0, *query_lens]).cumsum(0).to(torch.int32)
    lengths = torch.tensor(kv_lens, dtype=torch.int32)
    table = torch.zeros(len(kv_lens), 1, dtype=torch.int32)
    slots = torch.zeros(sum(query_lens), dtype=torch.int64)
    return AttentionStep(query_lens, kv_lens, [], starts, lengths, table, slots)


def first_seen(spec: KVSpec, length: int) -> int:
    if isinstance(spec, SlidingWindowSpec):
        return max(length - spec.window, 0)
    return (length - 1) // spec.chunk * spec.chunk if isinstance(spec, ChunkedLocalSpec) else 0


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("seed", range(4))
def test_pieces_cover_every_token_of_a_decode_row_once(spec: KVSpec, seed: int) -> None:
    draws = np.random.default_rng(seed)
    rows = int(draws.integers(1, 40))
    counts = np.where(draws.random(rows) < 0.8, 1, 3)
    lengths = counts + draws.integers(0, 20000 if seed % 2 else 300, rows)
    group = KVGroup(0, spec, 16, ("0.self",))
    ctx = AttentionContext(group, torch.bfloat16, torch.device("cpu"), max_rows=40, max_tokens=99)
    kernel = TritonKernel(ctx)
    plan = kernel.plan(step_of(counts.tolist(), lengths.tolist()))
    starts = np.cumsum(counts) - counts
    covered: dict[int, int] = {}
    states: list[int] = []
    for row, token, begin, end, low, pieces, base, which in plan.singles.pieces(0).table.tolist():
        if row < 0:
            continue
        assert token == starts[row] and low == first_seen(spec, int(lengths[row]))
        assert begin == covered.get(row, low // 16 * 16), "pieces follow one another"
        covered[row] = end
        if pieces > 1:
            states.append(base + which)
    wanted = {row: int(lengths[row]) for row in np.flatnonzero(counts == 1)}
    assert covered == wanted
    assert sorted(states) == list(range(len(states))) and len(states) <= 2 * kernel._parts


def test_tiles_cover_every_query_of_a_prefill_row_once_per_key_head() -> None:
    counts, lengths = [70, 1, 5, 64], [70, 9, 500, 64]
    seen = np.zeros((2, sum(counts)), int)
    for row, head, token, count, position in tiles_of(
        counts, lengths, 2, 32, np.array([0, 2, 3])
    ).tolist():
        first = sum(counts[:row])
        assert first <= token and token + count <= first + counts[row] and 0 < count <= 32
        assert position == lengths[row] - counts[row] + token - first
        seen[head, token : token + count] += 1
    assert (np.delete(seen, 70, 1) == 1).all() and not seen[:, 70].any()


def test_long_rows_and_late_queries_begin_first() -> None:
    tiles = tiles_of([64, 96], [64, 96], 2, 32, np.arange(2))
    assert tiles[:, 0].tolist() == [1] * 6 + [0] * 4
    assert tiles[:3, 1].tolist() == [0, 0, 0], "a key head at a time"
    assert tiles[:3, 4].tolist() == [64, 32, 0]
