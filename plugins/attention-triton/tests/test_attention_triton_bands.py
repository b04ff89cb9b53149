"""What all rows of a decode step share is read once for several of them, interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionStep
from pegboard.api.kv import FullAttentionSpec, KVGroup
from pegboard_attention_triton import pieces
from pegboard_attention_triton.kernel import TritonKernel
from pegboard_attention_triton.plan import most_states
from pegboard_testkit.attention_case import AttentionCase, Rows, Setting

BLOCK = 16


@pytest.fixture(autouse=True)
def short_beginnings_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "BAND_LEAST_TOKENS", 64)
    monkeypatch.setattr(pieces, "BAND_LEAST_ROWS", 4)


def banded(parts: int) -> Any:
    """Kernels that make bands and about `parts` pieces."""

    def make(ctx: AttentionContext) -> TritonKernel:
        kernel = TritonKernel(ctx)
        kernel._parts = parts
        return kernel

    return make


def sharing_case(lengths: Sequence[int], shared: int, parts: int, **setting: Any) -> AttentionCase:
    """Requests of one decode step whose first `shared` tokens lie in the same blocks."""
    chosen = Setting(**{"heads": 4, "kv_heads": 2, "block_size": BLOCK, **setting})
    case = AttentionCase(banded(parts), lengths, chosen, fused_kv_write=False)
    for row in range(len(lengths)):
        for part in (case.keys, case.values):
            part[row][:shared] = part[0][:shared]
        case.blocks[row][: shared // BLOCK] = case.blocks[0][: shared // BLOCK]
    case.fill([(1, length) for length in lengths])
    return case


def step_of(case: AttentionCase, rows: Rows, shared: int) -> AttentionStep:
    device = torch.tensor([shared], dtype=torch.int32)
    step = case.step(rows, range(len(rows)))
    return attrs.evolve(step, common_prefix=shared, common_prefix_device=device)


def check(case: AttentionCase, rows: Rows, step: AttentionStep) -> Any:
    """The metadata of the step, whose results are right."""
    metadata = case.kernel.plan(step)
    allowed = 2e-2 if case.setting.dtype == "bfloat16" else 1e-5
    for found, wanted in zip(case.forward(rows, metadata), case.expected(rows), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=allowed, atol=allowed)
    assert not case.kernel._arrivals.any(), "the next layer would join too early"
    return metadata


def bands_of(metadata: Any, band_rows: int) -> int:
    """Pieces of bands that were cut."""
    return int((metadata.singles.pieces(band_rows).table[:, 0] == -2).sum())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("parts", [1, 5])
def test_rows_that_share_their_beginning_get_what_they_get_alone(dtype: str, parts: int) -> None:
    lengths = [145, 161, 290, 146, 145]
    case = sharing_case(lengths, 144, parts, heads=8, dtype=dtype, kv_dtype=dtype)
    rows = [(1, length) for length in lengths]
    metadata = check(case, rows, step_of(case, rows, 144))
    assert bands_of(metadata, case.kernel._lanes // 4) > 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("head_size", "cap"), [(16, None), (80, 0.8)])
def test_bands_of_eight_bit_keys_and_values(dtype: str, head_size: int, cap: float | None) -> None:
    lengths = [145, 161, 290, 146, 145]
    sizes = {"heads": 8, "head_size": head_size, "soft_cap": cap, "scales": (0.37, 5.0)}
    case = sharing_case(lengths, 144, 5, dtype=dtype, kv_dtype="float8_e4m3fn", **sizes)
    rows = [(1, length) for length in lengths]
    metadata = check(case, rows, step_of(case, rows, 144))
    assert bands_of(metadata, case.kernel._lanes // 4) > 0


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_size", "cap"),
    [(4, 4, 16, None), (7, 1, 16, None), (4, 2, 80, None), (4, 2, 16, 0.8)],
)
def test_bands_of_every_shape(heads: int, kv_heads: int, head_size: int, cap: float | None) -> None:
    lengths = [140, 129, 150, 131, 129]
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_size": head_size, "soft_cap": cap}
    case = sharing_case(lengths, 128, 4, **sizes)
    rows = [(1, length) for length in lengths]
    metadata = check(case, rows, step_of(case, rows, 128))
    assert bands_of(metadata, case.kernel._lanes * kv_heads // heads) > 0


def test_heads_that_fill_the_lanes_go_without_bands() -> None:
    lengths = [140, 129, 150, 131]
    case = sharing_case(lengths, 128, 4, heads=16, kv_heads=1)
    rows = [(1, length) for length in lengths]
    metadata = check(case, rows, step_of(case, rows, 128))
    assert list(metadata.singles._cuts) == [0]


def test_a_sink_of_a_row_in_a_band_counts_once() -> None:
    lengths = [140, 129, 150, 131]
    case = sharing_case(lengths, 128, 4)
    rows = [(1, length) for length in lengths]
    case.layer = attrs.evolve(case.layer, sinks=torch.tensor([0.7, -1.0, 0.2, 3.0]))
    together = torch.cat(case.forward(rows, case.kernel.plan(step_of(case, rows, 128))))
    alone = torch.cat(case.run(rows))
    torch.testing.assert_close(together, alone)


def test_rows_of_several_query_tokens_stand_between_those_of_a_band() -> None:
    rows = [(1, 140), (5, 150), (1, 129), (1, 133), (3, 131), (1, 170)]
    case = sharing_case([length for _, length in rows], 112, 4)
    case.fill(rows)
    metadata = check(case, rows, step_of(case, rows, 112))
    assert bands_of(metadata, case.kernel._lanes // 2) > 0


@pytest.mark.parametrize(("count", "shared"), [(3, 128), (5, 48), (5, 0)])
def test_few_rows_and_short_beginnings_are_not_worth_a_band(count: int, shared: int) -> None:
    lengths = [140 + row for row in range(count)]
    case = sharing_case(lengths, 128, 4)
    rows = [(1, length) for length in lengths]
    metadata = check(case, rows, step_of(case, rows, shared))
    assert list(metadata.singles._cuts) == [0]


@pytest.mark.parametrize("replayed", [128, 48])
def test_a_recorded_step_follows_the_beginning_of_its_replay(replayed: int) -> None:
    lengths = [140, 129, 131, 300]
    case = sharing_case(lengths, 128, 6)
    case.kernel = banded(6)(attrs.evolve(case.kernel._ctx, max_rows=8))
    rows = [(1, length) for length in lengths]
    eager = step_of(case, rows, replayed)
    pad = torch.nn.functional.pad
    recorded = AttentionStep(
        [1] * 6, [5000] * 6, [], torch.arange(7, dtype=torch.int32),
        pad(eager.kv_lens_device, (0, 2)), pad(eager.block_table, (0, 0, 0, 2)),
        pad(eager.slots, (0, 2), value=-1), True, 5000, eager.common_prefix_device,
    )  # fmt: skip
    wanted = torch.cat(case.forward(rows, case.kernel.plan(eager)))
    query = torch.cat([case.queries[row][length - 1 :] for row, length in enumerate(lengths)])
    query = pad(query, (0, 0, 0, 0, 0, 2))
    metadata = case.kernel.plan(recorded)
    inputs = AttentionInputs(query, query, query)
    found = case.kernel.forward(case.layer, inputs, case.kv, metadata)
    assert torch.equal(found[:4], wanted)
    assert not found[4:].any(), "rows without a request are zero"
    assert bool(bands_of(metadata, 8)) == (replayed >= 64)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_cover_the_common_tokens_once_per_band_and_the_others_once_per_row(
    seed: int,
) -> None:
    draws = np.random.default_rng(seed)
    count, shared = int(draws.integers(4, 60)), 64 * int(draws.integers(1, 40)) + 32
    counts = np.where(draws.random(count) < 0.9, 1, 3)
    lengths = shared + counts + draws.integers(0, 3000 if seed % 2 else 90, count)
    group = KVGroup(0, FullAttentionSpec(8, 64, "bfloat16"), BLOCK, ("0.self",))
    ctx = AttentionContext(group, torch.bfloat16, torch.device("cpu"), max_rows=64, max_tokens=99)
    kernel = TritonKernel(ctx)
    starts = np.concatenate(([0], counts.cumsum()))
    step = AttentionStep(
        counts.tolist(), lengths.tolist(), [], torch.from_numpy(starts).int(),
        torch.from_numpy(lengths).int(), torch.zeros(count, 1, dtype=torch.int32),
        torch.zeros(int(starts[-1]), dtype=torch.int64), False, shared,
        torch.tensor([shared], dtype=torch.int32),
    )  # fmt: skip
    cut = kernel.plan(step).singles.pieces(6)
    tile = kernel._decode.tile
    whole = shared // tile * tile
    whole = whole if whole >= 64 and (counts == 1).sum() >= 4 else 0
    used = cut.table[cut.count : cut.count + int((counts == 1).sum())].tolist()
    lines = {row: line for row, *line in used}
    members = [row for row, *_ in used]
    bands: dict[int, int] = {}
    seen = dict.fromkeys(np.flatnonzero(counts == 1).tolist(), whole)
    states = []
    for row, token, begin, end, low, every, base, which in cut.table[: cut.count].tolist():
        if row == -2:
            assert begin == bands.get(token, 0) and (end - begin) % tile == 0 and token % 6 == 0
            assert low == min(6, len(members) - token), "rows of the band"
            bands[token] = end
            states += [lines[member][5] + which for member in members[token : token + low]]
        elif row >= 0:
            assert token == starts[row] and begin == seen[row] and low == 0
            seen[row] = end
            states += [base + which] if every > 1 else []
            if whole:
                assert [lines[row][field] for field in (0, 4, 5)] == [token, every, base]
    assert seen == {row: int(lengths[row]) for row in seen}
    assert set(bands.values()) <= {whole} and len(bands) == (-(-len(seen) // 6) if whole else 0)
    assert sorted(states) == list(range(len(states)))
    assert len(states) <= most_states(kernel._parts, 6, 64)
