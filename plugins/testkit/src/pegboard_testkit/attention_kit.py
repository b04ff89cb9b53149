"""Conformance kit for the surface *attention*: kernels of causal attention over all earlier
tokens, a sliding window or a chunk, as far as the descriptor claims them.

A test file of a backend subclasses `AttentionKit`, names its descriptor, and gets the tests below::

    class TestMyBackend(AttentionKit):
        backend = MY_BACKEND

They build the kernel for what the descriptor claims and compare it with attention by its definition
in float64. Blocks lie scattered, and whatever belongs to no request is NaN, so that reading one
number too many shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from pegboard.api.attention import AttentionBackend, AttentionContext, AttentionKernel
from pegboard_testkit.attention_case import AttentionCase, Rows, Setting
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["AttentionKit"]

MIXED: Rows = ((5, 5), (1, 12), (9, 20), (1, 3), (70, 71), (1, 8))

MIXTURES: Mapping[str, Rows] = {
    "one token alone": ((1, 1),),
    "one decode row": ((1, 37),),
    "a whole prompt": ((23, 23),),
    "a long prompt": ((150, 150),),
    "a chunk behind a prefix": ((7, 30),),
    "a long chunk behind a prefix": ((131, 200),),
    "decode rows of one length": ((1, 9), (1, 9), (1, 9)),
    "decode rows of many lengths": ((1, 1), (1, 40), (1, 16), (1, 17), (1, 300)),
    "prefill and decode mixed": MIXED,
    "ends of blocks": ((1, 16), (16, 16), (16, 32), (1, 17), (15, 32), (17, 33)),
}

BEYOND: Rows = ((1, 150), (70, 200), (1, 7), (23, 23), (16, 128), (1, 65), (130, 130), (2, 34))
"""Rows that reach far beyond the spans below, and some that do not."""

SPANS = (1, 5, 16, 17, 40, 64, 100)
"""Tokens of windows and chunks."""

LOCAL_KINDS = ("sliding", "chunked")

HEADS = ((4, 2), (3, 3), (8, 1), (9, 3))
"""Query heads and key heads."""


class AttentionKit(OwnSettings):
    """Tests of a backend; subclass it in a test file under a name that begins with ``Test``.

    `backend` must be given; the other attributes may be changed. What the descriptor leaves open
    ("any") is tried with the values of the attributes.
    """

    backend: AttentionBackend
    """The descriptor."""
    device = "cpu"
    """Torch device of the storage."""
    dtypes: Sequence[str] = ("float32", "bfloat16")
    """Compute dtypes, where the descriptor names none."""
    head_sizes: Sequence[int] = (16, 64, 80)
    """The same of numbers per head."""
    block_sizes: Sequence[int] = (16, 8, 32)
    """The same of tokens per block."""
    tolerances: Mapping[str, float] = {
        "float32": 2e-5,
        "float16": 4e-3,
        "bfloat16": 3e-2,
        "float8_e4m3fn": 2e-5,
    }
    """Largest error, relative and absolute, by the coarser of the dtypes of queries and cache. Keys
    and values are numbers that the cache can hold, so 8-bit floats add no error of their own."""
    mixtures = 25
    """How many random steps are tried."""

    def kernel(self, ctx: AttentionContext) -> AttentionKernel:
        """Build the kernel under test."""
        built: AttentionKernel = self.backend.kernel.load()(ctx)
        return built

    def test_the_descriptor_claims_full_attention(self) -> None:
        assert "full" in self.backend.kinds, f"kinds are {self.backend.kinds}"

    def test_every_offered_layout_works(self) -> None:
        case = self.case([1])
        for place, _ in enumerate(case.kernel.layouts(case.kv.spec)):
            self.check(MIXED, self.setting(layout=place))

    @pytest.mark.parametrize("rows", MIXTURES.values(), ids=MIXTURES)
    def test_attention_is_what_the_formula_says(self, rows: Rows) -> None:
        self.check(rows, self.setting())

    def test_every_claimed_dtype_works(self) -> None:
        for dtype in self.backend.dtypes or self.dtypes:
            for kv_dtype in self.backend.kv_dtypes or (dtype,):
                self.check(MIXED, self.setting(dtype=dtype, kv_dtype=kv_dtype))

    def test_scales_of_8_bit_keys_and_values_count_where_those_are_claimed(self) -> None:
        if "float8_e4m3fn" not in self.backend.kv_dtypes:
            return
        cap = 0.8 if "soft_cap" in self.backend.features else None
        for scales in ((0.25, 1.0), (1.0, 8.0), (0.7, 0.03)):
            setting = self.setting(kv_dtype="float8_e4m3fn", scales=scales)
            self.check(MIXED, setting)
            self.check(MIXED, attrs.evolve(setting, soft_cap=cap))

    def test_every_claimed_head_size_works_with_every_grouping(self) -> None:
        for size in self.backend.head_sizes or self.head_sizes:
            for heads, kv_heads in HEADS:
                setting = self.setting(heads=heads, kv_heads=kv_heads, head_size=size)
                self.check([(5, 9), (1, 6), (1, 7)], setting)

    def test_every_claimed_block_size_works(self) -> None:
        for size in self.backend.block_sizes or self.block_sizes:
            rows = [(1, size), (1, size + 1), (size, 2 * size), (3, size + 1), (size + 1, size + 1)]
            self.check(rows, self.setting(block_size=size))

    def test_any_mixture_of_rows_is_right(self) -> None:
        draws = np.random.default_rng(0)
        for seed in range(self.mixtures):
            counts = np.where(draws.random(6) < 0.5, 1, draws.integers(1, 80, 6))
            lengths = counts + draws.integers(0, 120, 6)
            rows = list(zip(counts.tolist(), lengths.tolist(), strict=True))
            self.check(rows[: 1 + seed % 6], self.setting(), seed)

    @pytest.mark.parametrize("more", [-1, 0, 1], ids=["before", "at", "after"])
    def test_chunks_that_end_near_the_end_of_a_block_join(self, more: int) -> None:
        block = self.setting().block_size
        chunks = [block + more, 1, 1, block + more, 2 * block + 1, 1]
        case, done, pieces = self.case([sum(chunks)]), 0, []
        for chunk in chunks:  # what earlier steps stored is all that there is to read
            done += chunk
            pieces += case.run([(chunk, done)])
        (wanted,) = case.expected([(done, done)])
        self.compare(torch.cat(pieces), wanted, case.setting, f"chunks {chunks}")

    def test_a_request_in_order_and_a_scattered_one_give_the_same(self) -> None:
        rows = [(1, 40), (9, 60)]
        case = self.case([length for _, length in rows])
        first = 1
        for row, blocks in enumerate(case.blocks):
            case.blocks[row] = list(range(first, first + len(blocks)))
            first += len(blocks)
        case.fill(rows)
        self._check_rows(case, rows, case.run(rows))

    def test_the_poison_of_one_request_stays_with_it(self) -> None:
        rows = [(1, 5), (1, 40), (9, 9), (3, 7), (1, 17)]
        for poisoned in (1, 3, 4):
            case = self.case([length for _, length in rows])
            case.fill(rows)
            block, offset = case.places(poisoned, 0, 1)
            case.storage[:, block, offset] = torch.nan
            found, wanted = case.run(rows), case.expected(rows)
            assert found[poisoned].isnan().all(), f"row {poisoned} did not read its first token"
            for row in {0, 1, 2, 3, 4} - {poisoned}:
                what = f"row {row}, with row {poisoned} poisoned"
                self.compare(found[row], wanted[row], case.setting, what)

    def test_new_keys_and_values_go_to_their_slots_and_nowhere_else(self) -> None:
        rows = [(2, 6), (1, 3), (20, 33), (1, 17)]
        case = self.case([length for _, length in rows])
        case.fill([(0, length) for _, length in rows])
        wanted = case.storage.clone()
        case.storage.fill_(torch.nan)
        case.fill(rows)
        assert not _same(case.storage, wanted).all(), "there was nothing to store"
        case.run(rows)
        wrong = (~_same(case.storage, wanted)).flatten(3).any(-1).nonzero().tolist()
        assert not wrong, f"wrong content of (key or value, block, offset) {wrong[:8]}"

    @pytest.mark.parametrize("span", SPANS)
    @pytest.mark.parametrize("kind", LOCAL_KINDS)
    def test_a_window_or_chunk_is_all_that_is_seen(self, kind: str, span: int) -> None:
        if kind in self.backend.kinds:
            self.check(BEYOND, self.setting(kind=kind, span=span))
            decode = [(1, length) for length in (1, span, span + 1, 3 * span + 2, 97)]
            self.check(decode, self.setting(kind=kind, span=span))

    @pytest.mark.parametrize("kind", LOCAL_KINDS)
    def test_chunks_of_a_prompt_join_while_blocks_leave_the_window(self, kind: str) -> None:
        if kind not in self.backend.kinds:
            return
        chunks = [1, 30, 1, 1, 47, 16, 5, 1, 70, 1]
        setting = self.setting(kind=kind, span=20)
        case, done, pieces = self.case([sum(chunks)], setting), 0, []
        for chunk in chunks:
            done += chunk
            case.forget([(chunk, done)])
            pieces += case.run([(chunk, done)])
        (wanted,) = case.expected([(done, done)])
        self.compare(torch.cat(pieces), wanted, setting, f"chunks {chunks}")

    def test_a_soft_cap_bounds_the_scores_where_it_is_claimed(self) -> None:
        if "soft_cap" not in self.backend.features:
            return
        for kind in ("full", *LOCAL_KINDS):
            if kind in self.backend.kinds:
                self.check(MIXED, self.setting(kind=kind, span=9, soft_cap=0.8))
        for heads, kv_heads in HEADS:
            rows = [(5, 9), (1, 6), (1, 7), (70, 70)]
            self.check(rows, self.setting(heads=heads, kv_heads=kv_heads, soft_cap=2.0))

    def test_pages_of_groups_with_larger_needs_may_be_padded(self) -> None:
        offered = self.case([1])
        for place, layout in enumerate(offered.kernel.layouts(offered.kv.spec)):
            if layout.axes[0] == "block":
                self.check(MIXED, self.setting(layout=place, padding=24))

    def test_one_plan_serves_every_layer_of_a_step(self) -> None:
        case = self.case([length for _, length in MIXED])
        metadata = case.kernel.plan(case.step(MIXED, range(len(MIXED))))
        for layer in range(3):
            case.redraw(layer)
            case.fill(MIXED)
            self._check_rows(case, MIXED, case.forward(MIXED, metadata))

    def test_nothing_of_a_step_is_left_for_the_next(self) -> None:
        case = self.case([length + 1 for _, length in MIXED])
        case.fill(MIXED)
        case.run(MIXED)
        rows = [(1, length + 1) for _, length in MIXED]
        backwards = range(len(rows))[::-1]
        wanted = case.expected(rows)
        for row, ours in zip(backwards, case.run(rows, backwards), strict=True):
            self.compare(ours, wanted[row], case.setting, f"row {row} in the step after")

    def test_batch_invariance_is_exact_where_it_is_claimed(self) -> None:
        if "batch_invariant" not in self.backend.features:
            return
        case = self.case([length for _, length in MIXED])
        case.fill(MIXED)
        for row, together in enumerate(case.run(MIXED)):
            (alone,) = case.run(MIXED, [row])
            assert torch.equal(together, alone), f"row {row} differs from the same row alone"

    def setting(self, **changes: Any) -> Setting:
        """What the descriptor serves, the first of each claim, with `changes`."""
        dtype = (self.backend.dtypes or self.dtypes)[0]
        allowed = self.backend.kv_dtypes or (dtype,)
        usual: dict[str, Any] = {
            "dtype": dtype,
            "kv_dtype": dtype if dtype in allowed else allowed[0],
            "head_size": (self.backend.head_sizes or self.head_sizes)[0],
            "block_size": (self.backend.block_sizes or self.block_sizes)[0],
            "device": self.device,
        }
        return Setting(**{**usual, **changes})

    def case(
        self, lengths: Sequence[int], setting: Setting | None = None, seed: int = 0
    ) -> AttentionCase:
        """Requests of these lengths, nothing stored yet."""
        chosen = setting or self.setting()
        own = self.handed("attention", self.backend.name)

        def kernel(ctx: AttentionContext) -> AttentionKernel:
            return self.kernel(attrs.evolve(ctx, **own))

        return AttentionCase(kernel, lengths, chosen, seed, self.backend.fused_kv_write)

    def check(self, rows: Rows, setting: Setting, seed: int = 0) -> None:
        """Run one step and compare all of it with the definition."""
        case = self.case([length for _, length in rows], setting, seed)
        case.fill(rows)
        self._check_rows(case, rows, case.run(rows))

    def compare(
        self, ours: torch.Tensor, wanted: torch.Tensor, setting: Setting, what: str
    ) -> None:
        """Fail with `what`, the setting and the figures if two results differ."""
        allowed = max(self.tolerances[name] for name in (setting.dtype, setting.kv_dtype))
        torch.testing.assert_close(
            ours.double(),
            wanted,
            rtol=allowed,
            atol=allowed,
            msg=lambda told: f"{what}, {setting}: {told}",
        )

    def _check_rows(self, case: AttentionCase, rows: Rows, found: Sequence[torch.Tensor]) -> None:
        for row, (ours, wanted) in enumerate(zip(found, case.expected(rows), strict=True)):
            self.compare(ours, wanted, case.setting, f"row {row} of {list(rows)}")


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Where two tensors are equal, NaN being equal to itself."""
    return (a == b) | (a.isnan() & b.isnan())
