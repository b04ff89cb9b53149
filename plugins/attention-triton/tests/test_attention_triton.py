"""Decode and prefill kernels against attention by its definition in float64, interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionStep
from pegboard.api.kv import FullAttentionSpec, KVGroup
from pegboard.errors import UnsupportedError
from pegboard_attention_triton.kernel import TritonKernel
from pegboard_testkit.attention_case import AttentionCase, Rows, Setting

MIXED: Rows = ((5, 5), (1, 12), (20, 71), (1, 90))
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}


def case_of(rows: Rows, **setting: Any) -> AttentionCase:
    chosen = Setting(**{"heads": 2, "kv_heads": 1, **setting})
    case = AttentionCase(TritonKernel, [length for _, length in rows], chosen, fused_kv_write=False)
    case.fill(rows)
    return case


def check(rows: Rows, **setting: Any) -> None:
    case = case_of(rows, **setting)
    allowed = TOLERANCE[case.setting.dtype]
    for found, wanted in zip(case.run(rows), case.expected(rows), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=allowed, atol=allowed)


def attend(case: AttentionCase, rows: Rows, step: AttentionStep) -> torch.Tensor:
    """One layer of a step over the rows of a case whose keys and values are stored."""
    for row, (count, length) in enumerate(rows):
        case.store(row, length - count, length)
    query = torch.cat([q[n - c : n] for q, (c, n) in zip(case.queries, rows, strict=True)])
    spare = sum(step.query_lens) - len(query)
    query = torch.cat((query, query.new_zeros(spare, *query.shape[1:])))
    metadata = case.kernel.plan(step)
    return case.kernel.forward(case.layer, AttentionInputs(query, query, query), case.kv, metadata)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_step_may_mix_decode_and_prefill(dtype: str) -> None:
    check(MIXED, dtype=dtype, kv_dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scales", [None, (0.37, 5.0)])
def test_eight_bit_keys_and_values_are_multiples_of_their_scales(
    dtype: str, scales: tuple[float, float] | None
) -> None:
    check(MIXED, dtype=dtype, kv_dtype="float8_e4m3fn", scales=scales)


@pytest.mark.parametrize("rows", [[(1, 700), (1, 3)], [(9, 40)]], ids=["decode", "prefill"])
def test_scales_of_eight_bit_keys_stand_before_soft_cap_and_sink(rows: Rows) -> None:
    setting = {"kv_dtype": "float8_e4m3fn", "scales": (0.3, 4.0)}
    check(rows, soft_cap=0.8, **setting)
    check(rows, kind="sliding", span=30, head_size=80, **setting)
    coded, plain = case_of(rows, **setting), case_of(rows)
    plain.queries, plain.keys, plain.values = coded.queries, coded.keys, coded.values
    plain.fill(rows)
    sinks = torch.tensor([0.7, -1.0])
    for case in (coded, plain):
        case.layer = attrs.evolve(case.layer, sinks=sinks)
    for found, wanted in zip(coded.run(rows), plain.run(rows), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [[(1, 300), (1, 70)], [(40, 60)]], ids=["decode", "prefill"])
def test_rounding_to_eight_bits_costs_no_more_than_the_format_says(rows: Rows) -> None:
    """A normal number moves by 2^-4 of itself at most, a subnormal one by 2^-10. Scores then move
    by the sum of |q| times that, weights by a factor of exp(2 * move), the result by the values'
    own moves and by their spread times what the weights moved."""
    exact, coded = case_of(rows), case_of(rows, kv_dtype="float8_e4m3fn")
    wanted, found = exact.expected(rows), coded.run(rows)
    for row, (count, length) in enumerate(rows):
        assert torch.equal(exact.queries[row], coded.queries[row])
        query = exact.queries[row][length - count : length].double()
        key, value = (side[row][:length, 0].double() for side in (exact.keys, exact.values))
        moves = torch.maximum(key.abs() / 16, torch.tensor(2.0**-10))
        moved = torch.einsum("qhd,kd->qhk", query.abs(), moves).amax(-1) * exact.layer.scale
        weights = (2 * moved).exp() - 1
        largest = value.abs().max()
        allowed = largest / 16 + 2 * largest * weights[..., None]
        error = (found[row].double() - wanted[row]).abs()
        assert (error <= allowed).all() and error.max() > 1e-4, error.max()
        assert error.mean() < 0.03, "far beyond what independent roundings add up to"


@pytest.mark.parametrize("power", [100, -90])
@pytest.mark.parametrize("rows", [[(1, 300), (1, 7)], [(9, 40)]], ids=["decode", "prefill"])
def test_queries_beyond_the_range_of_float16_meet_eight_bit_keys_exactly(
    rows: Rows, power: int
) -> None:
    case = case_of(rows, dtype="bfloat16", kv_dtype="float8_e4m3fn", heads=4)
    case.queries = [query * torch.logspace(-2, 2, 4).to(query)[:, None] for query in case.queries]
    wanted = case.run(rows)
    case.queries = [query * 2.0**power for query in case.queries]
    case.layer = attrs.evolve(case.layer, k_scale=torch.tensor(2.0**-power))
    for found, one in zip(case.run(rows), wanted, strict=True):
        assert torch.equal(found, one) and one.isfinite().all()


@pytest.mark.parametrize("rows", [[(1, 300)], [(9, 40)]], ids=["decode", "prefill"])
def test_many_small_weights_of_eight_bit_values_add_up(rows: Rows) -> None:
    case = case_of(rows, dtype="bfloat16", kv_dtype="float8_e4m3fn", head_size=16)
    for part in (case.queries[0], case.keys[0], case.values[0]):
        part.zero_()
    case.queries[0][..., 0] = 1.0
    case.keys[0][0, :, 0] = 104.0  # the others have 2^-26 of its weight, and all that counts
    case.values[0][1:] = 1.0
    case.fill(rows)
    found, wanted = case.run(rows)[0], case.expected(rows)[0]
    assert wanted.min() > 0 and wanted.max() < 1e-5
    torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=0.0)


def test_pages_of_others_are_never_read_as_eight_bit_numbers() -> None:
    rows = [(1, 40), (9, 25), (1, 300)]
    case = case_of(rows, kv_dtype="float8_e4m3fn")
    assert case.storage.isnan().any(), "nothing is poisoned"
    for row, found in enumerate(case.run(rows)):
        assert found.isfinite().all(), row
    block, offset = case.places(1, 0, 1)
    case.storage[:, block, offset] = torch.nan
    found = case.run(rows)
    assert found[1].isnan().all(), "a poisoned token of its own must show"
    assert found[0].isfinite().all() and found[2].isfinite().all()


@pytest.mark.parametrize("group", [1, 2, 4, 7, 8, 16])
def test_query_heads_of_a_group_share_their_key_head(group: int) -> None:
    check([(3, 20), (1, 19)], heads=2 * group, kv_heads=2)


@pytest.mark.parametrize("head_size", [64, 80, 96, 112, 128, 192, 256])
def test_heads_of_any_size_are_served(head_size: int) -> None:
    check([(3, 20), (1, 19)], heads=1, head_size=head_size)


@pytest.mark.parametrize("block_size", [8, 16, 64, 128])
def test_blocks_of_any_size_are_served(block_size: int) -> None:
    check([(3, 140), (1, 129)], heads=1, block_size=block_size)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("heads", [32, 33])
def test_any_number_of_query_heads_may_share_eight_bit_keys(dtype: str, heads: int) -> None:
    rows = [(1, 90), (3, 20), (1, 300)]
    check(rows, heads=heads, dtype=dtype, kv_dtype="float8_e4m3fn", scales=(0.37, 5.0))


@pytest.mark.parametrize("kind", ["sliding", "chunked"])
@pytest.mark.parametrize("span", [1, 16, 33, 100])
def test_a_window_or_chunk_ends_where_it_should(kind: str, span: int) -> None:
    rows = [(1, 150), (70, 200), (1, span), (1, span + 1), (2, span + 1)]
    check(rows, heads=1, kind=kind, span=span)


def test_a_soft_cap_bounds_the_scores() -> None:
    check(MIXED, soft_cap=0.8)


def test_a_long_row_is_cut_into_pieces_and_joined() -> None:
    rows = [(1, 700), (1, 3)]
    case = case_of(rows, heads=4)
    metadata = case.kernel.plan(case.step(rows, range(2)))
    assert (metadata.singles.pieces(0).table[:, 0] == 0).sum() > 3, "the long row is in one piece"
    for found, wanted in zip(case.run(rows), case.expected(rows), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    assert not case.kernel._arrivals.any(), "the next layer would join too early"


@pytest.mark.parametrize("rows", [[(1, 300), (1, 5)], [(4, 30)]])
def test_a_sink_takes_its_share_of_the_weights_once(rows: Rows) -> None:
    case = case_of(rows)
    sinks = torch.tensor([0.7, -1.0])
    without = case.expected(rows)
    case.layer = attrs.evolve(case.layer, sinks=sinks)
    for row, found in enumerate(case.run(rows)):
        count, length = rows[row]
        query, keys = case.queries[row][length - count :], case.keys[row][:, 0]
        scores = torch.einsum("qhd,kd->qhk", query, keys).double() * case.layer.scale
        hidden = torch.arange(length) > torch.arange(length - count, length)[:, None]
        total = scores.masked_fill(hidden[:, None], -torch.inf).exp().sum(-1)
        share = total / (total + sinks.double().exp())
        torch.testing.assert_close(found.double(), without[row] * share[..., None])


def test_queries_may_be_a_part_of_something_larger() -> None:
    rows = [(3, 20), (1, 19)]
    case = case_of(rows)
    wanted = torch.cat(case.run(rows))
    packed = torch.full((4, 5, 48), torch.nan)
    packed[:, 1:3, 16:32] = torch.cat([case.queries[0][17:20], case.queries[1][18:19]])
    query = packed[:, 1:3, 16:32]
    metadata = case.kernel.plan(case.step(rows, range(2)))
    inputs = AttentionInputs(query, query, query)
    found = case.kernel.forward(case.layer, inputs, case.kv, metadata)
    assert torch.equal(found, wanted)
    last = query.transpose(1, 2).contiguous().transpose(1, 2)  # a head's numbers are apart
    inputs = AttentionInputs(last, last, last)
    assert torch.equal(case.kernel.forward(case.layer, inputs, case.kv, metadata), wanted)


def recorded(step: AttentionStep, rows: int, longest: int) -> AttentionStep:
    """The step as it is recorded: padded to a number of rows, host values of the largest replay."""
    spare = rows - len(step.query_lens)
    table = torch.nn.functional.pad(step.block_table, (0, 0, 0, spare))
    lengths = torch.nn.functional.pad(step.kv_lens_device, (0, spare))
    starts = torch.arange(rows + 1, dtype=torch.int32)
    slots = torch.nn.functional.pad(step.slots, (0, spare), value=-1)
    return AttentionStep(
        [1] * rows, [longest] * rows, [], starts, lengths, table, slots, captured=True
    )


@pytest.mark.parametrize("kind", ["full", "sliding", "chunked"])
@pytest.mark.parametrize("lengths", [(1, 600), (64, 65), (20,), (130, 1, 257)])
def test_a_recorded_step_equals_an_eager_one_bit_for_bit(kind: str, lengths: Sequence[int]) -> None:
    rows = [(1, length) for length in lengths]
    case = case_of(rows, kind=kind, span=200)
    case.kernel = TritonKernel(attrs.evolve(case.kernel._ctx, max_rows=4))
    eager = case.step(rows, range(len(rows)))
    alone = attend(case, rows, eager)
    together = attend(case, rows, recorded(eager, 4, 5000))
    assert torch.equal(together[: len(rows)], alone)
    assert not together[len(rows) :].any(), "rows without a request are zero"


def test_rows_without_queries_or_without_tokens_are_left_alone() -> None:
    rows = [(1, 20)]
    case = case_of(rows)
    case.kernel = TritonKernel(attrs.evolve(case.kernel._ctx, max_rows=3))
    step = case.step(rows, [0])
    table = torch.nn.functional.pad(step.block_table, (0, 0, 1, 1))
    wide = attrs.evolve(
        step,
        query_lens=[0, 1, 0],
        kv_lens=[7, 20, 0],
        query_starts=torch.tensor([0, 0, 1, 1], dtype=torch.int32),
        kv_lens_device=torch.tensor([7, 20, 0], dtype=torch.int32),
        block_table=table,
    )
    assert torch.equal(attend(case, rows, wide), attend(case, rows, step))


def test_values_of_another_size_are_refused() -> None:
    spec = FullAttentionSpec(1, 64, "float32", value_head_size=32)
    group = KVGroup(0, spec, 16, ("0.self",))
    ctx = AttentionContext(group, torch.float32, torch.device("cpu"), max_rows=1, max_tokens=1)
    with pytest.raises(UnsupportedError, match="value_head_size=32"):
        TritonKernel(ctx)
