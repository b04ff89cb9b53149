"""The attention kit passes a right kernel and fails wrong ones, each in the test meant for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pegboard.api.attention import (
    AttentionBackend,
    AttentionContext,
    AttentionInputs,
    AttentionLayer,
    AttentionStep,
)
from pegboard.api.kv import (
    ChunkedLocalSpec,
    KVLayout,
    KVSpec,
    KVTensors,
    SlidingWindowSpec,
)
from pegboard_testkit.attention_kit import MIXTURES, AttentionKit


class PlainKernel:
    """Every request on its own, every token gathered by its place."""

    layout = KVLayout("plain", ("block", "head", "token", "kv", "dim"))

    def __init__(self, ctx: AttentionContext) -> None:
        self.size = ctx.group.block_size
        self.spec = ctx.group.spec

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return (self.layout,)

    def plan(self, step: AttentionStep) -> Any:
        return step

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        tokens = kv.data.permute(3, 0, 2, 1, 4)  # [kv, block, token, head, dim]
        self.store(tokens, inputs, metadata)
        found, first = [], 0
        for row, count in enumerate(metadata.query_lens):
            keys, values = self.gather(tokens, metadata, row).to(inputs.query.dtype)
            begin = self.first_seen(metadata.kv_lens[row] - count) if self.skips else 0
            query = inputs.query[first : first + count]
            found.append(self.attend(layer, query, keys[begin:], values[begin:]))
            first += count
        return torch.cat(found)

    skips = True
    """Leaves out what no query sees."""

    def first_seen(self, position: int) -> int:
        if isinstance(self.spec, SlidingWindowSpec):
            return max(position - self.spec.window + 1, 0)
        if isinstance(self.spec, ChunkedLocalSpec):
            return position // self.spec.chunk * self.spec.chunk
        return 0

    def store(self, tokens: torch.Tensor, inputs: AttentionInputs, step: AttentionStep) -> None:
        where = step.slots // self.size, step.slots % self.size
        tokens[(0, *where)] = inputs.key.to(tokens.dtype)
        tokens[(1, *where)] = inputs.value.to(tokens.dtype)

    def gather(self, tokens: torch.Tensor, step: AttentionStep, row: int) -> torch.Tensor:
        """``[2, length, kv heads, dim]``"""
        blocks = torch.tensor(step.block_lists[row])
        return tokens[:, blocks].flatten(1, 2)[:, : step.kv_lens[row]]

    def attend(
        self, layer: AttentionLayer, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        group = layer.heads // layer.kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * layer.scale
        if layer.soft_cap is not None:
            scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
        weights = scores.masked_fill(~self.seen(*scores.shape[1:]), -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)

    def seen(self, queries: int, keys: int) -> torch.Tensor:
        """bool ``[queries, keys]``; the last query is of the last key."""
        seen = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        if isinstance(self.spec, SlidingWindowSpec):
            return seen.triu(keys - queries - self.spec.window + 1)
        if isinstance(self.spec, ChunkedLocalSpec):  # keys begin with a chunk
            chunks = torch.arange(keys) // self.spec.chunk
            return seen & (chunks == chunks[keys - queries :, None])
        return seen


class WindowsOffByOne(PlainKernel):
    def seen(self, queries: int, keys: int) -> torch.Tensor:
        seen = super().seen(queries, keys)
        if isinstance(self.spec, SlidingWindowSpec) and queries > 1:
            return (
                torch.ones_like(seen).tril(keys - queries).triu(keys - queries - self.spec.window)
            )
        return seen


class SeesTheChunkBefore(PlainKernel):
    def seen(self, queries: int, keys: int) -> torch.Tensor:
        if isinstance(self.spec, ChunkedLocalSpec):
            return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
        return super().seen(queries, keys)


class ReadsBlocksThatLeftTheWindow(PlainKernel):
    """And gives what is in them no weight."""

    skips = False


class IgnoresTheCap(PlainKernel):
    def attend(
        self, layer: AttentionLayer, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        sizes = (layer.heads, layer.kv_heads, layer.head_size, layer.scale)
        return super().attend(AttentionLayer(*sizes), query, keys, values)


class TakesPagesForWholes(PlainKernel):
    """Assumes that a block begins where the one before it ends."""

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        flat = kv.data.as_strided(kv.data.shape, torch.empty(kv.data.shape).stride())
        return super().forward(
            layer, inputs, KVTensors(kv.key, kv.group, kv.spec, kv.layout, flat), metadata
        )


class ReadsWholeBlocks(PlainKernel):
    """Gives what lies behind a request's end no weight, but reads it."""

    def gather(self, tokens: torch.Tensor, step: AttentionStep, row: int) -> torch.Tensor:
        whole = tokens[:, torch.tensor(step.block_lists[row])].flatten(1, 2)
        return whole[:, : step.kv_lens[row]] + 0 * whole.sum()


class SeesTheFuture(PlainKernel):
    def attend(
        self, layer: AttentionLayer, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        group = layer.heads // layer.kv_heads
        keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = torch.einsum("qhd,khd->hqk", query, keys) * layer.scale
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)


class TakesBlocksInOrder(PlainKernel):
    def gather(self, tokens: torch.Tensor, step: AttentionStep, row: int) -> torch.Tensor:
        begin = step.block_lists[row][0] * self.size
        return tokens.flatten(1, 2)[:, begin : begin + step.kv_lens[row]]


class ClearsTheBlock(PlainKernel):
    """Leaves zeros behind the last token that it stores."""

    def store(self, tokens: torch.Tensor, inputs: AttentionInputs, step: AttentionStep) -> None:
        for length, blocks in zip(step.kv_lens, step.block_lists, strict=True):
            tokens[:, blocks[-1], (length - 1) % self.size + 1 :] = 0
        super().store(tokens, inputs, step)


class SwapsKeysAndValues(PlainKernel):
    """Consistent in itself, but a connector or a copied block would not understand it."""

    def store(self, tokens: torch.Tensor, inputs: AttentionInputs, step: AttentionStep) -> None:
        other = AttentionInputs(inputs.query, inputs.value, inputs.key)
        super().store(tokens, other, step)

    def gather(self, tokens: torch.Tensor, step: AttentionStep, row: int) -> torch.Tensor:
        return super().gather(tokens, step, row).flip(0)


class KeepsTheFirstPlan(PlainKernel):
    first: AttentionStep | None = None

    def plan(self, step: AttentionStep) -> Any:
        if self.first is None or len(self.first.query_lens) != len(step.query_lens):
            self.first = step
            return step
        return AttentionStep(
            step.query_lens,
            self.first.kv_lens,
            self.first.block_lists,
            step.query_starts,
            step.kv_lens_device,
            step.block_table,
            step.slots,
        )


class KeepsKeysBetweenLayers(PlainKernel):
    def plan(self, step: AttentionStep) -> Any:
        self.kept: dict[int, torch.Tensor] = {}
        return step

    def gather(self, tokens: torch.Tensor, step: AttentionStep, row: int) -> torch.Tensor:
        return self.kept.setdefault(row, super().gather(tokens, step, row))


class DropsTheFirstToken(PlainKernel):
    """Of long requests, where one of many hardly counts."""

    def gather(self, tokens: torch.Tensor, step: AttentionStep, row: int) -> torch.Tensor:
        found = super().gather(tokens, step, row)
        return found if step.kv_lens[row] == step.query_lens[row] else found[:, 1:]


class FeelsItsMates(PlainKernel):
    """A rounding error that depends on the batch."""

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        found = super().forward(layer, inputs, kv, metadata)
        return found * (1 + 1e-6 * (len(metadata.query_lens) - 1))


class OffersALayoutItCannotUse(PlainKernel):
    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return (self.layout, KVLayout("turned", ("block", "token", "head", "kv", "dim")))


class HasNoValues(PlainKernel):
    layout = KVLayout("torn", ("block", "head", "token", "dim"))


class AnswersInFloat32(PlainKernel):
    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        return super().forward(layer, inputs, kv, metadata).float()


class PlainKit(AttentionKit):
    """A kernel of this file instead of one that the descriptor refers to."""

    backend = AttentionBackend(
        "plain",
        "nowhere:Kernel",
        kinds=("full", "sliding", "chunked"),
        features=frozenset({"batch_invariant", "soft_cap"}),
    )
    kernel_class: type[PlainKernel] = PlainKernel

    def kernel(self, ctx: AttentionContext) -> PlainKernel:
        return self.kernel_class(ctx)


class TestPlainKernel(PlainKit):
    """The kit's own tests, on a kernel that is right."""


PARAMETERS: dict[str, list[Any]] = {
    "test_attention_is_what_the_formula_says": list(MIXTURES.values()),
    "test_chunks_that_end_near_the_end_of_a_block_join": [-1, 0, 1],
    "test_a_window_or_chunk_is_all_that_is_seen": [
        {"kind": kind, "span": span} for kind in ("sliding", "chunked") for span in (5, 16, 64)
    ],
    "test_chunks_of_a_prompt_join_while_blocks_leave_the_window": ["sliding", "chunked"],
}
TESTS = sorted(name for name in dir(AttentionKit) if name.startswith("test_"))


def failures(kernel: type[PlainKernel]) -> set[str]:
    """Names of the tests, without their first five letters, that a kernel fails."""
    kit = PlainKit()
    kit.kernel_class = kernel
    found = set()
    for name in TESTS:
        for value in PARAMETERS.get(name, [None]):
            named = value if isinstance(value, dict) else {}
            try:
                getattr(kit, name)(*([] if value is None or named else [value]), **named)
            except (AssertionError, RuntimeError):  # RuntimeError: shapes that do not fit
                found.add(name.removeprefix("test_"))
    return found


@pytest.mark.parametrize(
    ("kernel", "test"),
    [
        (ReadsWholeBlocks, "attention_is_what_the_formula_says"),
        (SeesTheFuture, "attention_is_what_the_formula_says"),
        (TakesBlocksInOrder, "chunks_that_end_near_the_end_of_a_block_join"),
        (TakesBlocksInOrder, "any_mixture_of_rows_is_right"),
        (SwapsKeysAndValues, "new_keys_and_values_go_to_their_slots_and_nowhere_else"),
        (KeepsTheFirstPlan, "nothing_of_a_step_is_left_for_the_next"),
        (DropsTheFirstToken, "the_poison_of_one_request_stays_with_it"),
        (AnswersInFloat32, "every_claimed_dtype_works"),
        (OffersALayoutItCannotUse, "every_offered_layout_works"),
        (WindowsOffByOne, "a_window_or_chunk_is_all_that_is_seen"),
        (SeesTheChunkBefore, "a_window_or_chunk_is_all_that_is_seen"),
        (ReadsBlocksThatLeftTheWindow, "a_window_or_chunk_is_all_that_is_seen"),
        (ReadsBlocksThatLeftTheWindow, "chunks_of_a_prompt_join_while_blocks_leave_the_window"),
    ],
)
def test_a_kernel_that_is_wrong_is_caught(kernel: type[PlainKernel], test: str) -> None:
    assert test in failures(kernel)


@pytest.mark.parametrize(
    ("kernel", "test"),
    [
        (ClearsTheBlock, "new_keys_and_values_go_to_their_slots_and_nowhere_else"),
        (KeepsKeysBetweenLayers, "one_plan_serves_every_layer_of_a_step"),
        (FeelsItsMates, "batch_invariance_is_exact_where_it_is_claimed"),
        (IgnoresTheCap, "a_soft_cap_bounds_the_scores_where_it_is_claimed"),
        (TakesPagesForWholes, "pages_of_groups_with_larger_needs_may_be_padded"),
    ],
)
def test_a_fault_that_only_one_test_can_see_is_caught(kernel: type[PlainKernel], test: str) -> None:
    assert failures(kernel) == {test}


def test_a_layout_without_an_axis_is_refused() -> None:
    kit = PlainKit()
    kit.kernel_class = HasNoValues
    with pytest.raises(AssertionError, match=r"layout 'torn' .* kv"):
        kit.test_every_offered_layout_works()


def test_a_backend_of_another_kind_is_told_so() -> None:
    kit = PlainKit()
    kit.backend = AttentionBackend("other", "nowhere:Kernel", kinds=("sliding",))
    with pytest.raises(AssertionError, match="sliding"):
        kit.test_the_descriptor_claims_full_attention()
