"""The calls that replace attention over pages add up, with a stand-in for cuDNN."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionStep
from pegboard_attention_flash import pegboard_attention_backends
from pegboard_attention_flash.cuts import Buckets
from pegboard_testkit.attention_case import AttentionCase, Rows, Setting
from pegboard_testkit.attention_kit import AttentionKit

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]

BUCKETS = Buckets((8, 16, 24, 40, 80), (16, 32, 80), (48, 16), together=3, together_below=16)
WIDE = Buckets((64, 160, 448), (64, 448), (256, 128))
SETTING = Setting(heads=4, kv_heads=2, head_size=64, dtype="bfloat16", kv_dtype="bfloat16")


class StandIn:
    """Computes what cuDNN would, and keeps what torch would keep a plan by."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.plans: set[tuple[object, ...]] = set()
        self.calls: list[tuple[int, int, int, bool]] = []

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        causal: bool,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows, _, queries, _ = query.shape
        keys = key.shape[2]
        parts = (query, key, value)
        self.plans.add((causal, *((part.shape, part.stride()) for part in parts)))
        self.calls.append((rows, queries, keys, causal))
        seen = torch.ones(queries, keys, dtype=torch.bool)
        seen = seen.tril() if causal else seen
        found = [self.attention(*(p[r] for p in parts), seen, scale) for r in range(rows)]
        out = torch.stack([out for out, _ in found]).transpose(1, 2).contiguous().transpose(1, 2)
        return out, torch.stack([lse for _, lse in found])


def kernel_of(ctx: AttentionContext, attention: Attention, buckets: Buckets = BUCKETS):  # type: ignore[no-untyped-def]
    from pegboard_attention_flash.cudnn import CudnnPrompts

    return CudnnPrompts(ctx, StandIn(attention), buckets)


class TestCudnnPrompts(AttentionKit):
    # Smaller calls than on a GPU, and fewer head sizes: the interpreter is slow.
    (offered,) = pegboard_attention_backends()
    backend = attrs.evolve(offered, head_sizes=(64, 80))
    mixtures = 2

    @pytest.fixture(autouse=True)
    def _stand_in(self, attention: Attention) -> None:
        self._attention = attention

    def kernel(self, ctx: AttentionContext):  # type: ignore[no-untyped-def]
        return kernel_of(ctx, self._attention, WIDE)


class Packed:
    """A case whose queries, keys and values are views of one tensor, as projections give them."""

    def __init__(
        self,
        attention: Attention,
        rows: Rows,
        setting: Setting = SETTING,
        buckets: Buckets = BUCKETS,
    ) -> None:
        self.rows = rows
        self.case = AttentionCase(
            lambda ctx: kernel_of(ctx, attention, buckets),
            [length for _, length in rows],
            setting,
            fused_kv_write=False,
        )
        self.case.fill(rows)
        self.kernel = self.case.kernel
        self.library: StandIn = self.kernel._attend  # type: ignore[attr-defined]

    def inputs(self) -> AttentionInputs:
        case, heads = self.case, (self.case.layer.heads, *2 * (self.case.layer.kv_heads,))
        parts = [
            torch.cat([part[row][n - count : n] for row, (count, n) in enumerate(self.rows)])
            for part in (case.queries, case.keys, case.values)
        ]
        return AttentionInputs(*torch.cat(parts, 1).split(heads, 1))

    def step(self) -> AttentionStep:
        return self.case.step(self.rows, range(len(self.rows)))

    def run(self, inputs: AttentionInputs | None = None) -> list[torch.Tensor]:
        for row, (count, length) in enumerate(self.rows):
            self.case.store(row, length - count, length)
        plan = self.kernel.plan(self.step())
        out = self.kernel.forward(self.case.layer, inputs or self.inputs(), self.case.kv, plan)
        return list(out.split([count for count, _ in self.rows]))

    def check(self, found: Sequence[torch.Tensor]) -> None:
        for mine, wanted in zip(found, self.case.expected(self.rows), strict=True):
            torch.testing.assert_close(mine.double(), wanted, rtol=3e-2, atol=3e-2)


@pytest.fixture(scope="module")
def plans(attention: Attention) -> set[tuple[object, ...]]:
    """Those that warming up makes."""
    packed = Packed(attention, ((1, 1),))
    packed.kernel.warm_up(packed.case.layer)
    return packed.library.plans


ROWS: dict[str, Rows] = {
    "one exact length": ((24, 24),),
    "exact neighbours": ((16, 16),) * 4,
    "any lengths": ((13, 13), (24, 24), (2, 2), (39, 39)),
    "a past of one piece": ((20, 36),),
    "a past of one piece and an exact square": ((24, 40),),
    "a past that leaves a rest": ((20, 43),),
    "a past that is only a rest": ((9, 20),),
    "a past of several pieces": ((33, 33 + 48 + 48 + 16 + 5),),
    "everything": ((8, 8), (20, 43), (16, 16), (16, 16), (16, 16), (5, 5), (40, 40), (24, 40)),
    "longer than the longest square": ((200, 200), (3, 3)),
    "longer than the longest square, with a past": ((100, 153),),
}


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_packed_inputs_give_what_the_formula_says(
    rows: Rows, attention: Attention, plans: set[object]
) -> None:
    packed = Packed(attention, rows)
    packed.check(packed.run())
    assert packed.library.plans <= plans, "a step needs a plan that warming up has not made"


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 1), (6, 2)])
def test_query_heads_share_key_heads(heads: int, kv_heads: int, attention: Attention) -> None:
    setting = attrs.evolve(SETTING, heads=heads, kv_heads=kv_heads)
    packed = Packed(attention, ((20, 43), (16, 16), (13, 13)), setting)
    packed.check(packed.run())


@pytest.mark.parametrize("layout", range(4))
def test_pages_of_every_layout_are_read(layout: int, attention: Attention) -> None:
    packed = Packed(attention, ((20, 90), (13, 13)), attrs.evolve(SETTING, layout=layout))
    packed.check(packed.run())


def test_pages_with_padding_are_read(attention: Attention) -> None:
    packed = Packed(attention, ((20, 90), (13, 13)), attrs.evolve(SETTING, padding=24))
    packed.check(packed.run())


def test_warming_up_makes_every_plan_once(attention: Attention) -> None:
    packed = Packed(attention, ((1, 1),))
    packed.kernel.warm_up(packed.case.layer)
    assert sorted(packed.library.calls) == sorted(BUCKETS.shapes())
    assert len(packed.library.plans) == len(BUCKETS.shapes())


@pytest.mark.parametrize("poisoned", [0, 2, 3])
def test_a_row_that_is_not_a_number_spoils_no_other(poisoned: int, attention: Attention) -> None:
    packed = Packed(attention, ((13, 13), (16, 16), (20, 43), (5, 5), (16, 16)))
    case = packed.case
    for part in (case.queries, case.keys, case.values):
        part[poisoned].fill_(torch.nan)
    for row, (count, length) in enumerate(packed.rows):
        case.store(row, 0, length - count)
    found = packed.run()
    wanted = case.expected(packed.rows)
    assert found[poisoned].isnan().all()
    for row in set(range(5)) - {poisoned}:
        torch.testing.assert_close(found[row].double(), wanted[row], rtol=3e-2, atol=3e-2)


def test_what_earlier_steps_left_in_scratch_memory_is_not_seen(attention: Attention) -> None:
    packed = Packed(attention, ((20, 43), (13, 13)))
    inputs = packed.inputs()
    scratch = packed.kernel._scratch.like(inputs)  # type: ignore[attr-defined]
    for part in (scratch.query, scratch.key, scratch.value):
        part.fill_(torch.nan)
    packed.check(packed.run(inputs))


def test_inputs_that_are_not_packed_are_taken_too(attention: Attention) -> None:
    packed = Packed(attention, ((20, 90), (13, 13), (16, 16)))
    views = packed.inputs()
    parts = (views.query, views.key, views.value)
    packed.check(packed.run(AttentionInputs(*(part.contiguous() for part in parts))))
    turned = (part.transpose(1, 2).contiguous().transpose(1, 2) for part in parts)
    packed.check(packed.run(AttentionInputs(*turned)))


def test_neighbours_are_computed_in_one_call(attention: Attention) -> None:
    packed = Packed(attention, ((16, 16),) * 3)
    packed.run()
    assert packed.library.calls == [(3, 16, 16, True)]


def test_a_step_without_rows_gives_nothing(attention: Attention) -> None:
    packed = Packed(attention, ((5, 5),))
    step = packed.step()
    none = attrs.evolve(step, query_lens=[], kv_lens=[], block_lists=[])
    inputs = packed.inputs()
    empty = AttentionInputs(inputs.query[:0], inputs.key[:0], inputs.value[:0])
    plan = packed.kernel.plan(none)
    assert packed.kernel.forward(packed.case.layer, empty, packed.case.kv, plan).shape[0] == 0


def test_many_pieces_lose_no_precision(attention: Attention) -> None:
    narrow = Buckets((16, 32), (32,), (16,))
    many = Packed(attention, ((16, 16 + 8 * 16),), buckets=narrow)
    few = Packed(attention, ((16, 16 + 8 * 16),), buckets=Buckets((16, 144), (144,), (128, 16)))
    (wanted,) = many.case.expected(many.rows)
    errors = [(packed.run()[0].double() - wanted).norm() for packed in (many, few)]
    assert errors[0] < 1.5 * errors[1]
