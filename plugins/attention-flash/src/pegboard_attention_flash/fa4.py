"""Attention by FlashAttention 4 (the package ``flash-attn-4``), whose kernels take any lengths.

Neighbouring rows without a past are one call on the step's own tensors. For a row with a past,
keys and values are copied out of their pages, up to `PIECE` tokens of the past at a time: the last
of them and the step's own in one call that is causal from the last token on, the others in calls
without a mask, joined by their log-sum-exp. On an H200 it reaches 552 to 662 TFLOP/s of causal
attention with heads of 128.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import STRIDED_LAYOUTS, KVLayout, KVSpec, KVTensors
from pegboard.nn.transit import send
from pegboard_attention_flash.pages import Result, join_results, read_tokens

__all__ = ["Fa4", "Fa4Plan", "Fa4Prompts", "PastRow", "Run", "find_fa4", "split_rows"]

PIECE = 16384
"""Most tokens of a past that are copied at a time."""
LEAST_QUERIES = 256
"""Fewest query tokens of a row that repay a call."""


@attrs.frozen
class Fa4:
    """Functions of the package: over rows that follow one another in a tensor, over one row."""

    varlen: Callable[..., Any]
    dense: Callable[..., Any]


def find_fa4() -> Fa4 | None:
    """The package's functions, None if it is not installed (or cannot be imported)."""
    try:
        from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    except (ImportError, OSError):  # the latter: a library of CUDA that it needs
        return None
    return Fa4(flash_attn_varlen_func, flash_attn_func)


@attrs.frozen
class Run:
    """Neighbouring rows without a past."""

    start: int
    """First query token in the step."""
    lengths: tuple[int, ...]

    @property
    def stop(self) -> int:
        """Query token of the step behind the last."""
        return self.start + sum(self.lengths)


@attrs.frozen
class PastRow:
    """A row with tokens before its queries."""

    row: int
    start: int
    count: int
    """Query tokens."""
    past: int
    """Tokens before them."""


@attrs.frozen(eq=False)
class Fa4Plan:
    """What `Fa4Prompts.plan` hands to every layer."""

    calls: Sequence[tuple[Run, torch.Tensor] | PastRow]
    """Runs with their borders, int32 ``[rows + 1]``, counted from the run's start."""
    block_table: torch.Tensor


def split_rows(query_lens: Sequence[int], kv_lens: Sequence[int]) -> list[Run | PastRow]:
    """The rows of a step in their order."""
    calls: list[Run | PastRow] = []
    start = 0
    for row, (count, length) in enumerate(zip(query_lens, kv_lens, strict=True)):
        before = calls[-1] if calls else None
        if count < length:
            calls.append(PastRow(row, start, count, length - count))
        elif isinstance(before, Run):
            calls[-1] = attrs.evolve(before, lengths=(*before.lengths, count))
        else:
            calls.append(Run(start, (count,)))
        start += count
    return calls


class Fa4Prompts:
    """Full causal attention of rows with several query tokens, for one KV group."""

    def __init__(self, ctx: AttentionContext, library: Fa4, piece: int = PIECE) -> None:
        spec = ctx.group.spec
        self._library = library
        self._piece = piece
        self._block = ctx.group.block_size
        self._device = ctx.device
        self._dtype = ctx.dtype
        self._room = (2, piece + ctx.max_tokens, spec.kv_heads, spec.head_size)
        self._memory: torch.Tensor | None = None

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return STRIDED_LAYOUTS

    def wants(self, query_len: int, kv_len: int) -> bool:
        """Whether a row of these lengths is computed faster here than by a kernel for any row."""
        return query_len >= LEAST_QUERIES

    def plan(self, step: AttentionStep) -> Fa4Plan:
        calls = [
            (call, self._borders(call)) if isinstance(call, Run) else call
            for call in split_rows(step.query_lens, step.kv_lens)
        ]
        return Fa4Plan(calls, step.block_table)

    def _borders(self, run: Run) -> torch.Tensor:
        borders = np.cumsum((0, *run.lengths)).astype(np.int32)
        (there,) = send(self._device, borders)
        return there

    def forward(
        self,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        metadata: Fa4Plan,
    ) -> torch.Tensor:
        if len(metadata.calls) == 1 and isinstance(metadata.calls[0], tuple):
            return self._run(layer, inputs, *metadata.calls[0])
        out = torch.empty(inputs.query.shape, dtype=self._dtype, device=self._device)
        for call in metadata.calls:
            if isinstance(call, tuple):
                out[call[0].start : call[0].stop] = self._run(layer, inputs, *call)
            else:
                row = _Row(call, inputs, kv, metadata.block_table[call.row], layer.scale)
                self._row(row, out[call.start : call.start + call.count])
        return out

    def warm_up(self, layer: AttentionLayer) -> None:
        """Allocate scratch memory and compile the three kernels, which takes some seconds where the
        package has not kept them on disk."""
        counts = (layer.heads, layer.kv_heads, layer.kv_heads)
        tokens = 2 * LEAST_QUERIES
        packed = torch.zeros(
            (tokens, sum(counts), layer.head_size), dtype=self._dtype, device=self._device
        )
        inputs = AttentionInputs(*packed.split(counts, 1))
        run = Run(0, (LEAST_QUERIES, LEAST_QUERIES))
        self._run(layer, inputs, run, self._borders(run))
        keys, values = self._scratch()[:, :tokens].zero_()
        for causal in (True, False):
            self._dense(inputs.query, keys, values, causal, layer.scale)

    def _run(
        self, layer: AttentionLayer, inputs: AttentionInputs, run: Run, borders: torch.Tensor
    ) -> torch.Tensor:
        longest = max(run.lengths)
        own = slice(run.start, run.stop)
        found: torch.Tensor = self._library.varlen(
            inputs.query[own],
            inputs.key[own],
            inputs.value[own],
            cu_seqlens_q=borders,
            cu_seqlens_k=borders,
            max_seqlen_q=longest,
            max_seqlen_k=longest,
            softmax_scale=layer.scale,
            causal=True,
        )[0]
        return found

    def _row(self, row: _Row, out: torch.Tensor) -> None:
        """A row with a past, into its place in the result."""
        call = row.call
        whole = (call.past - 1) // self._piece
        state = self._span(row, whole * self._piece, call.past + call.count, True)
        if not whole:
            out.copy_(state[0])
            return
        wide = out
        if whole > 1:
            wide = torch.empty(out.shape, dtype=torch.float32, device=out.device)
        for place in range(whole):
            found = self._span(row, place * self._piece, (place + 1) * self._piece, False)
            state = join_results(state, found, out if place == whole - 1 else wide)

    def _span(self, row: _Row, first: int, stop: int, causal: bool) -> Result:
        """Attention to tokens `first` to `stop`."""
        keys, values = self._scratch()[:, : stop - first]
        read_tokens(row.kv, row.table, (first, stop), (keys, values), self._block)
        own = row.inputs.query[row.call.start : row.call.start + row.call.count]
        return self._dense(own, keys, values, causal, row.scale)

    def _dense(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        causal: bool,
        scale: float,
    ) -> Result:
        out, lse = self._library.dense(
            query[None],
            keys[None],
            values[None],
            softmax_scale=scale,
            causal=causal,
            return_lse=True,
        )
        return out[0], lse[0]

    def _scratch(self) -> torch.Tensor:
        """Keys and values, ``[2, tokens, kv_heads, dim]``, the same memory for all layers."""
        if self._memory is None:
            self._memory = torch.empty(self._room, dtype=self._dtype, device=self._device)
        return self._memory


@attrs.frozen(eq=False)
class _Row:
    """A row with a past in one layer."""

    call: PastRow
    inputs: AttentionInputs
    kv: KVTensors
    table: torch.Tensor
    scale: float
