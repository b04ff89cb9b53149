"""Attention by cuDNN, through torch: calls of few shapes, see `pegboard_attention_flash.cuts`.

On an H200 it reaches 565 to 608 TFLOP/s of causal attention with heads of 128. torch keeps a plan
for each shape *and* set of strides, per thread, so every call here has the strides of the step's
tensors, and `CudnnPrompts.warm_up` makes all plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import STRIDED_LAYOUTS, KVLayout, KVSpec, KVTensors
from pegboard_attention_flash.cuts import Buckets, Group, Part, buckets_for, grouped, parts_of
from pegboard_attention_flash.pages import Result, Scratch, join_results, read_tokens

__all__ = ["Attend", "CudnnPlan", "CudnnPrompts", "cudnn_attend"]

Attend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, bool, float], tuple[torch.Tensor, torch.Tensor]
]
"""``(query [rows, heads, n, dim], key [rows, kv_heads, m, dim], value, causal, scale)`` ->
``[rows, heads, n, dim]`` and the log-sum-exp of the scores, ``[rows, heads, n]`` or with a
last axis of 1; causal: query i sees keys 0 to i."""


def cudnn_attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`Attend` by cuDNN."""
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(
        query, key, value, None, True, 0.0, causal, False, scale=scale
    )
    return found[0], found[1]


@attrs.frozen(eq=False)
class CudnnPlan:
    """What `CudnnPrompts.plan` hands to every layer."""

    calls: Sequence[Part | Group]
    block_table: torch.Tensor


class CudnnPrompts:
    """Full causal attention of rows with several query tokens, for one KV group."""

    def __init__(
        self, ctx: AttentionContext, attend: Attend = cudnn_attend, buckets: Buckets | None = None
    ) -> None:
        self.buckets = buckets or buckets_for(ctx.max_tokens)
        self._attend = attend
        self._block = ctx.group.block_size
        self._device = ctx.device
        self._kv_heads = ctx.group.spec.kv_heads
        self._scratch = Scratch(self.buckets.room, ctx.dtype, ctx.device)
        self._dtype = ctx.dtype

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return STRIDED_LAYOUTS

    def wants(self, query_len: int, kv_len: int) -> bool:
        """Whether a row of these lengths is computed faster here than by a kernel for any row."""
        return self.buckets.worthwhile(query_len, kv_len)

    def plan(self, step: AttentionStep) -> CudnnPlan:
        parts = parts_of(step.query_lens, step.kv_lens, self.buckets)
        return CudnnPlan(grouped(parts, self.buckets), step.block_table)

    def forward(
        self,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        metadata: CudnnPlan,
    ) -> torch.Tensor:
        work = _Layer(self, layer, _dense_heads(inputs), kv, metadata.block_table)
        if len(metadata.calls) == 1 and isinstance(metadata.calls[0], Group):
            return work.together(metadata.calls[0])
        out = torch.empty(inputs.query.shape, dtype=self._dtype, device=self._device)
        for call in metadata.calls:
            if isinstance(call, Group):
                out[call.start : call.start + call.rows * call.square] = work.together(call)
            else:
                work.part(call, out[call.start : call.start + call.count])
        return out

    def warm_up(self, layer: AttentionLayer) -> None:
        """Allocate scratch memory and let cuDNN plan every shape, for inputs that are views of one
        packed tensor ``[tokens, heads + 2 kv_heads, dim]``. Takes 0.05 to 0.5 s per shape (see
        `Buckets.shapes`); must run in the thread that will serve."""
        counts = (layer.heads, layer.kv_heads, layer.kv_heads)
        packed = torch.empty(
            (1, sum(counts), layer.head_size), dtype=self._dtype, device=self._device
        )
        room = self._scratch.like(AttentionInputs(*packed.split(counts, 1)))
        for part in (room.query, room.key, room.value):
            part.zero_()
        for rows, queries, keys, causal in self.buckets.shapes():
            self._attend(
                _rows_of(room.query, 0, queries, rows),
                _rows_of(room.key, 0, keys, rows),
                _rows_of(room.value, 0, keys, rows),
                causal,
                layer.scale,
            )


class _Layer:
    """The calls of one layer in one step."""

    def __init__(
        self,
        kernel: CudnnPrompts,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        table: torch.Tensor,
    ) -> None:
        self._attend = kernel._attend
        self._scale = layer.scale
        self._block = kernel._block
        self._scratch = kernel._scratch
        self._inputs = inputs
        self._kv = kv
        self._table = table

    def together(self, group: Group) -> torch.Tensor:
        """``[tokens, heads, dim]`` of neighbouring rows, in place."""
        query, key, value = (
            _rows_of(part, group.start, group.square, group.rows)
            for part in (self._inputs.query, self._inputs.key, self._inputs.value)
        )
        found, _ = self._attend(query, key, value, True, self._scale)
        return found.transpose(1, 2).flatten(0, 1)

    def part(self, part: Part, out: torch.Tensor) -> None:
        """One part, into its place in the result."""
        queries, first_query = self._queries(part)
        state = self._square(part, _rows_of(queries, first_query - part.rest, part.square))
        if not part.pieces:
            out.copy_(state[0])
            return
        chunk = _rows_of(queries, first_query, part.chunk)
        first, wide = 0, out
        if len(part.pieces) > 1:
            wide = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        for place, piece in enumerate(part.pieces):
            found = self._piece(part, chunk, first, piece)
            last = place == len(part.pieces) - 1
            state = join_results(state, found, out if last else wide)
            first += piece

    def _queries(self, part: Part) -> tuple[torch.Tensor, int]:
        """``[tokens, heads, dim]`` and where in it the part's queries begin, so that all calls of
        the part can read as many as they take. The others may be anything: their results are
        dropped."""
        query = self._inputs.query
        behind = max(part.square - part.rest, part.chunk)
        if part.start >= part.rest and part.start + behind <= len(query):
            return query, part.start
        copied = self._scratch.like(self._inputs).query
        copied[part.rest : part.rest + part.count] = query[part.start : part.start + part.count]
        return copied, part.rest

    def _square(self, part: Part, queries: torch.Tensor) -> Result:
        """Attention of the queries to the run of tokens that they end."""
        if part.exact:
            source, start = self._inputs, part.start
        else:
            source, start = self._scratch.like(self._inputs), 0
            into = (source.key[: part.square], source.value[: part.square])
            run = (part.stop - part.count - part.rest, part.stop)
            read_tokens(self._kv, self._table[part.row], run, into, self._block)
        keys = _rows_of(source.key, start, part.square)
        values = _rows_of(source.value, start, part.square)
        found = self._attend(queries, keys, values, True, self._scale)
        return _tokens_of(found, part.rest, part.count)

    def _piece(self, part: Part, queries: torch.Tensor, first: int, piece: int) -> Result:
        """Attention of the queries to tokens `first` to ``first + piece``."""
        scratch = self._scratch.like(self._inputs)
        into = (scratch.key[:piece], scratch.value[:piece])
        span = (first, first + piece)
        read_tokens(self._kv, self._table[part.row], span, into, self._block)
        keys = _rows_of(scratch.key, 0, piece)
        values = _rows_of(scratch.value, 0, piece)
        found = self._attend(queries, keys, values, False, self._scale)
        return _tokens_of(found, 0, part.count)


def _dense_heads(inputs: AttentionInputs) -> AttentionInputs:
    """The numbers of a head must follow one another."""
    parts = (inputs.query, inputs.key, inputs.value)
    if all(part.stride(2) == 1 for part in parts):
        return inputs
    return AttentionInputs(*(part.contiguous() for part in parts))


def _rows_of(tokens: torch.Tensor, start: int, length: int, rows: int = 1) -> torch.Tensor:
    """A view ``[rows, heads, length, dim]`` of ``[tokens, heads, dim]`` from token `start` on. The
    stride between rows is that of `length` tokens, also where there is one row: it is a part of
    what cuDNN's plans are kept by."""
    token, head, dim = tokens.stride()
    return tokens.as_strided(
        (rows, tokens.shape[1], length, tokens.shape[2]),
        (length * token, head, token, dim),
        tokens.storage_offset() + start * token,
    )


def _tokens_of(found: tuple[torch.Tensor, torch.Tensor], start: int, count: int) -> Result:
    """`count` tokens of one row's result, as `join_results` takes them."""
    out, lse = found
    whole = lse.reshape(lse.shape[1], lse.shape[2])
    return out[0].transpose(0, 1)[start : start + count], whole[:, start : start + count]
