"""The torch attention backend against plain float64 arithmetic."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVGroup,
    KVSpec,
    KVTensors,
    SlidingWindowSpec,
)
from pegboard.errors import UnsupportedError
from pegboard_attention_torch import pegboard_attention_backends
from pegboard_attention_torch.kernel import TorchKernel
from pegboard_attention_torch.plan import PACK_TOKENS, TILE, StepMetadata, plan_step

CPU = torch.device("cpu")


class Case:
    """Random rows with random blocks; whatever no row owns is NaN."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        *,
        heads: int = 4,
        kv_heads: int = 2,
        dim: int = 16,
        block_size: int = 4,
        dtype: torch.dtype = torch.float32,
        kv_dtype: torch.dtype | None = None,
        compute_dtype: torch.dtype | None = None,
        ordered: bool = False,
        seed: int = 0,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.rows, self.dtype = rows, dtype
        kv_dtype = kv_dtype or dtype
        name = str(kv_dtype).removeprefix("torch.")
        spec = FullAttentionSpec(kv_heads, dim, name)
        self.layer = AttentionLayer(heads, kv_heads, dim, 0.7 / math.sqrt(dim))
        tokens = sum(count for count, _ in rows)
        group = KVGroup(0, spec, block_size, ("0.attention",))
        most = max(len(rows), 1), max(tokens, 1)
        ctx = AttentionContext(group, compute_dtype or dtype, CPU, *most)
        self.kernel = TorchKernel(ctx)
        self.ctx = ctx
        lists = self._blocks(block_size, ordered, draw)
        total = 3 + sum(map(len, lists))
        layout = self.kernel.layouts(spec)[0]
        data = torch.full(layout.shape(spec, total, block_size), math.nan, dtype=kv_dtype)
        self.keys = [torch.randn(n, kv_heads, dim, generator=draw).to(kv_dtype) for _, n in rows]
        self.values = [torch.randn(n, kv_heads, dim, generator=draw).to(kv_dtype) for _, n in rows]
        self.query = torch.randn(tokens, heads, dim, generator=draw).to(dtype)
        self.kv = KVTensors("0.attention", 0, spec, layout, data)
        self.block_size = block_size
        self._store_past(lists)
        self.step = self._step(lists)

    def _blocks(self, size: int, ordered: bool, draw: torch.Generator) -> list[list[int]]:
        counts = [-(-length // size) for _, length in self.rows]
        total = sum(counts)
        ids = torch.arange(total) if ordered else torch.randperm(total, generator=draw)
        split = (ids + 2).split(counts) if counts else ()
        return [part.tolist() for part in split]

    def _places(self, blocks: list[int], length: int) -> list[int]:
        size = self.block_size
        return [blocks[token // size] * size + token % size for token in range(length)]

    def _store_past(self, lists: list[list[int]]) -> None:
        flat = self.kv.data.view(2, -1, *self.kv.data.shape[3:])
        for r, (count, length) in enumerate(self.rows):
            for token, place in enumerate(self._places(lists[r], length)[: length - count]):
                flat[0, place], flat[1, place] = self.keys[r][token], self.values[r][token]

    def _step(self, lists: list[list[int]]) -> AttentionStep:
        widest = max(map(len, lists), default=0)
        table = torch.zeros(len(lists), widest, dtype=torch.int32)
        slots: list[int] = []
        for r, (count, length) in enumerate(self.rows):
            table[r, : len(lists[r])] = torch.tensor(lists[r], dtype=torch.int32)
            slots += self._places(lists[r], length)[length - count :]
        counts = [count for count, _ in self.rows]
        lengths = [length for _, length in self.rows]
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        return AttentionStep(
            counts,
            lengths,
            lists,
            starts,
            torch.tensor(lengths, dtype=torch.int32),
            table,
            torch.tensor(slots, dtype=torch.int64),
        )

    def run(self) -> torch.Tensor:
        new = [
            torch.cat(
                [
                    part[length - count :]
                    for part, (count, length) in zip(parts, self.rows, strict=True)
                ]
            )
            for parts in (self.keys, self.values)
        ]
        inputs = AttentionInputs(self.query, *(part.to(self.dtype) for part in new))
        return self.kernel.forward(self.layer, inputs, self.kv, self.kernel.plan(self.step))

    def expected(self) -> torch.Tensor:
        """Softmax by its definition, one query token at a time, in float64."""
        group = self.layer.heads // self.layer.kv_heads
        results, first = [], 0
        for r, (count, length) in enumerate(self.rows):
            for q in range(count):
                seen = length - count + q + 1
                keys = self.keys[r][:seen].double().repeat_interleave(group, 1)
                values = self.values[r][:seen].double().repeat_interleave(group, 1)
                scores = torch.einsum("hd,lhd->hl", self.query[first + q].double(), keys)
                weights = torch.softmax(scores * self.layer.scale, -1)
                results.append(torch.einsum("hl,lhd->hd", weights, values))
            first += count
        return torch.stack(results)

    def check(self, tolerance: float = 1e-5) -> None:
        found = self.run()
        assert found.dtype == self.dtype
        assert found.shape == self.query.shape
        torch.testing.assert_close(found.double(), self.expected(), rtol=tolerance, atol=tolerance)


ROWS = {
    "one token alone": [(1, 1)],
    "one decode row": [(1, 37)],
    "a whole prompt": [(23, 23)],
    "a chunk behind a prefix": [(7, 30)],
    "a chunk of exactly a tile": [(TILE, TILE + 5)],
    "a chunk of a tile and one": [(TILE + 1, TILE + 1)],
    "several tiles behind a prefix": [(2 * TILE + 3, 3 * TILE + 1)],
    "decode rows of one length": [(1, 9), (1, 9), (1, 9)],
    "decode rows of many lengths": [(1, 1), (1, 40), (1, 4), (1, 5), (1, 17)],
    "a long decode row beside short ones": [(1, PACK_TOKENS + 1), (1, 3), (1, PACK_TOKENS)],
    "prefill and decode mixed": [(5, 5), (1, 12), (9, 20), (1, 3), (1, 8)],
    "a row without queries": [(0, 6), (2, 2), (1, 6)],
    "block edges": [(1, 4), (4, 4), (4, 8), (1, 5), (3, 8)],
}


@pytest.mark.parametrize("ordered", [False, True], ids=["scattered", "ordered"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_attention_is_what_the_formula_says(rows: list[tuple[int, int]], ordered: bool) -> None:
    Case(rows, ordered=ordered).check()


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(1, 1, 8), (3, 3, 64), (9, 3, 64), (8, 1, 32), (4, 2, 80)]
)
def test_every_grouping_of_heads_and_head_size_works(heads: int, kv_heads: int, dim: int) -> None:
    Case([(5, 9), (1, 6), (1, 7)], heads=heads, kv_heads=kv_heads, dim=dim).check()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_stays_within_its_rounding(dtype: torch.dtype) -> None:
    Case(ROWS["prefill and decode mixed"], dtype=dtype).check(2e-2)


def test_a_cache_of_another_dtype_is_converted_on_the_way() -> None:
    Case(ROWS["prefill and decode mixed"], kv_dtype=torch.bfloat16).check(2e-2)


@pytest.mark.parametrize("ordered", [False, True], ids=["scattered", "ordered"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_queries_may_be_wider_than_the_compute_dtype(
    rows: list[tuple[int, int]], ordered: bool
) -> None:
    narrow = {"kv_dtype": torch.bfloat16, "compute_dtype": torch.bfloat16}
    Case(rows, **narrow, ordered=ordered).check(2e-2)


def test_wide_queries_of_a_prompt_are_not_rounded() -> None:
    narrow = {"kv_dtype": torch.bfloat16, "compute_dtype": torch.bfloat16}
    Case([(TILE + 1, TILE + 9)], **narrow).check(1e-5)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 90), st.integers(0, 120)).map(lambda t: (t[0], t[0] + t[1]))
        | st.integers(1, 300).map(lambda length: (1, length)),
        min_size=1,
        max_size=6,
    ),
    block_size=st.sampled_from([1, 8, 16]),
    ordered=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_any_mixture_of_rows_is_right(
    rows: list[tuple[int, int]], block_size: int, ordered: bool, seed: int
) -> None:
    Case(rows, block_size=block_size, ordered=ordered, seed=seed, dim=8).check()


def test_unused_storage_never_leaks_into_a_result() -> None:
    case = Case([(1, 5), (1, 2), (3, 7)], block_size=16)
    assert case.kv.data.isnan().any()
    assert case.run().isfinite().all()


def test_the_poison_of_one_request_stays_with_it() -> None:
    case = Case([(1, 5), (1, 9), (3, 7)])
    place = case.step.block_lists[0][0] * case.block_size
    case.kv.data.view(2, -1, 2, 16)[:, place] = math.nan
    found = case.run()
    assert found[0].isnan().all()
    torch.testing.assert_close(found[1:].double(), case.expected()[1:], rtol=1e-5, atol=1e-5)


def test_new_keys_and_values_are_stored_in_their_slots_and_nowhere_else() -> None:
    case = Case([(2, 6), (1, 3)])
    before = case.kv.data.view(2, -1, 2, 16).clone()
    case.run()
    after = case.kv.data.view(2, -1, 2, 16)
    slots = case.step.slots
    assert torch.equal(after[0, slots[:2]], case.keys[0][4:])
    assert torch.equal(after[1, slots[2:]], case.values[1][2:])
    untouched = torch.ones(after.shape[1], dtype=torch.bool).index_fill(0, slots, False)
    assert torch.equal(after[:, untouched].nan_to_num(), before[:, untouched].nan_to_num())


def test_a_storage_that_cannot_be_viewed_is_an_error_not_a_lost_write() -> None:
    case = Case([(1, 3)])
    torn = case.kv.data.transpose(1, 2).contiguous().transpose(1, 2)
    object.__setattr__(case.kv, "data", torn)
    with pytest.raises(RuntimeError, match="view"):
        case.run()


def test_both_layouts_give_the_same_bits() -> None:
    case = Case([(5, 5), (1, 12), (9, 20), (1, 3), (1, 300)])
    expected = case.run()
    other = case.kernel.layouts(case.kv.spec)[1]
    turned = case.kv.data.transpose(0, 1).contiguous()
    case.kv = KVTensors(case.kv.key, 0, case.kv.spec, other, turned)
    assert torch.equal(case.run(), expected)


def test_rows_in_order_need_no_gather_and_short_ones_share_a_call() -> None:
    case = Case([(1, 9), (1, 12), (1, PACK_TOKENS + 4), (3, 3)], ordered=True)
    metadata = plan_step(case.step, case.ctx)
    assert [pack.queries.tolist() for pack in metadata.packs] == [[1, 0]]
    assert [row.first for row in metadata.rows] == [2, 3]
    assert all(row.start is not None and row.blocks is None for row in metadata.rows)


def test_the_mask_grows_with_the_context_not_with_its_square() -> None:
    length, count = 131_072, 2048
    spec = FullAttentionSpec(1, 2, "float32")
    band = planned(spec, [(count, length)], list(range(1, length // 16 + 1))).band
    assert band is not None
    assert band.numel() <= TILE * length


def planned(
    spec: KVSpec, rows: list[tuple[int, int]], blocks: list[int], size: int = 16
) -> StepMetadata:
    """The plan of a step whose rows all have the block table `blocks`."""
    counts, lengths = [count for count, _ in rows], [length for _, length in rows]
    group = KVGroup(0, spec, size, ("0.attention",))
    ctx = AttentionContext(group, torch.float32, CPU, len(rows), sum(counts))
    step = AttentionStep(
        counts,
        lengths,
        [blocks] * len(rows),
        torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.tensor([blocks] * len(rows), dtype=torch.int32),
        torch.arange(sum(counts)),
    )
    return plan_step(step, ctx)


LOCAL = {
    "window": SlidingWindowSpec(1, 8, "float32", window=512),
    "chunk": ChunkedLocalSpec(1, 8, "float32", chunk=512),
}


@pytest.mark.parametrize("spec", LOCAL.values(), ids=LOCAL)
def test_what_is_read_is_bounded_by_the_window_not_by_the_length(spec: KVSpec) -> None:
    draw = torch.Generator().manual_seed(0)
    for length in (4096, 65_536):
        blocks = (torch.randperm(length // 16, generator=draw) + 1).tolist()
        metadata = planned(spec, [(1, length), (300, length)], blocks)
        one, many = metadata.rows
        assert one.blocks is not None and len(one.blocks) <= 512 // 16 + 1
        assert many.blocks is not None and len(many.blocks) <= (512 + 300) // 16 + 2
        assert max(tile.depth + tile.count for tile in many.tiles) <= 512 + TILE
        assert sum(tile.count for tile in many.tiles) == 300
        assert metadata.band is not None and metadata.band.numel() <= TILE * (512 + TILE)


def test_decode_rows_with_a_short_window_share_a_call_however_long_they_are() -> None:
    spec = SlidingWindowSpec(1, 8, "float32", window=64)
    metadata = planned(spec, [(1, 8000), (1, 700), (1, 8192)], list(range(1, 513)))
    (pack,) = metadata.packs
    assert (pack.length, pack.mask) == (64, None)
    assert not metadata.rows


def test_a_window_of_blocks_in_order_needs_no_gather() -> None:
    spec = SlidingWindowSpec(1, 8, "float32", window=600)
    blocks = [0] * 100 + list(range(7, 57))
    (row,) = planned(spec, [(1, 150 * 16)], blocks).rows
    assert row.blocks is None
    assert row.start == (7 + (150 * 16 - 600) // 16 - 100) * 16 + (150 * 16 - 600) % 16


def test_a_context_of_128k_tokens_is_right_at_its_far_end() -> None:
    Case([(3, 131_072), (1, 131_071)], heads=1, kv_heads=1, dim=2, block_size=256).check(1e-4)


def test_values_of_another_size_than_keys_are_refused_by_name() -> None:
    spec = FullAttentionSpec(2, 16, "float32", value_head_size=8)
    ctx = AttentionContext(KVGroup(0, spec, 16, ("0.attention",)), torch.float32, CPU, 1, 1)
    with pytest.raises(UnsupportedError, match="value_head_size=8"):
        TorchKernel(ctx)


def test_the_hook_describes_the_backend() -> None:
    (backend,) = pegboard_attention_backends()
    assert (backend.name, backend.kinds) == ("torch", ("full", "sliding", "chunked"))
    assert backend.kernel.load() is TorchKernel
    assert sys.modules["pegboard_attention_torch"].PEGBOARD_API == {"attention": 0}


def test_pages_that_are_padded_hold_the_same_as_keys_and_values_apart() -> None:
    """Blocks outermost, each followed by room that belongs to another kind of layer."""
    spec = FullAttentionSpec(2, 8, "float32")
    group = KVGroup(0, spec, 4, ("0.self",))
    kernel = TorchKernel(AttentionContext(group, torch.float32, torch.device("cpu"), 4, 64))
    apart, together = kernel.layouts(spec)
    pages = torch.full((9, 2 * 4 * 2 * 8 + 24), torch.nan)
    padded = pages[:, :-24].unflatten(1, (2, 4, 2, 8))
    plain = torch.full(apart.shape(spec, 9, 4), torch.nan)
    storages = [
        KVTensors("0.self", 0, spec, apart, plain),
        KVTensors("0.self", 0, spec, together, padded),
    ]
    layer = AttentionLayer(4, 2, 8, 0.3)
    make = torch.Generator().manual_seed(0)
    lists = [[3, 4, 5], [8, 1], [2], [7]]
    for counts, lengths in (([9, 6, 2, 3], [9, 6, 2, 3]), ([1, 2, 1, 1], [10, 8, 3, 4])):
        total = sum(counts)
        places = [
            lists[row][position // 4] * 4 + position % 4
            for row, (count, length) in enumerate(zip(counts, lengths, strict=True))
            for position in range(length - count, length)
        ]
        table = torch.tensor([[*blocks, 0, 0][:3] for blocks in lists], dtype=torch.int32)
        step = AttentionStep(
            counts,
            lengths,
            lists,
            torch.tensor([0, *counts]).cumsum(0).int(),
            torch.tensor(lengths, dtype=torch.int32),
            table,
            torch.tensor(places),
        )
        draws = [torch.randn(total, heads, 8, generator=make) for heads in (4, 2, 2)]
        found = [
            kernel.forward(layer, AttentionInputs(*draws), kv, kernel.plan(step)) for kv in storages
        ]
        assert torch.allclose(found[0], found[1], atol=1e-6)
    assert pages[:, -24:].isnan().all(), "the padding belongs to others"
