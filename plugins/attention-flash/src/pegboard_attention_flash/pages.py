"""Launching the plugin's own device code, and memory for what it copies."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import attrs
import torch
import triton

from pegboard.api.attention import AttentionInputs
from pegboard.api.kv import KVTensors
from pegboard_attention_flash.kernels.join import join
from pegboard_attention_flash.kernels.pages import copy_tokens

__all__ = ["Result", "Scratch", "join_results", "read_tokens"]

COPIED = 4096
"""Numbers of keys, and as many of values, that a program of four warps copies."""
JOINED = 2048
"""Numbers of the result that a program of four warps joins."""

Result = tuple[torch.Tensor, torch.Tensor]
"""``[tokens, heads, dim]``, and the log-sum-exp of the scores, ``[heads, tokens]`` float32."""


def read_tokens(
    kv: KVTensors,
    table: torch.Tensor,
    span: tuple[int, int],
    into: tuple[torch.Tensor, torch.Tensor],
    block_size: int,
) -> None:
    """Copy keys and values of the tokens ``span[0]`` to ``span[1]`` of the row whose block ids are
    `table` into two tensors ``[tokens, kv_heads, dim]``; zeros follow where those are longer."""
    keys, values = into
    room, heads, dim = keys.shape
    tile = max(COPIED // triton.next_power_of_2(dim), 1)
    copy_tokens[(triton.cdiv(room, tile), heads)](
        kv.data,
        table,
        keys,
        values,
        span[0],
        span[1] - span[0],
        *kv.strides("kv", "block", "head", "token"),
        *keys.stride()[:2],
        *values.stride()[:2],
        room,
        DIM=dim,
        BLOCK=block_size,
        TILE=tile,
    )


def join_results(left: Result, right: Result, out: torch.Tensor) -> Result:
    """Attention over the keys of both, written to ``out [tokens, heads, dim]``, which may be the
    result in `left`."""
    tokens, heads, dim = out.shape
    tile = max(JOINED // triton.next_power_of_2(dim), 1)
    # Never in place: threads of a program read one another's places of it, in no order.
    lse = torch.empty((heads, tokens), dtype=torch.float32, device=out.device)
    join[(triton.cdiv(tokens, tile), heads)](
        left[0],
        left[1],
        right[0],
        right[1],
        out,
        lse,
        tokens,
        *left[0].stride()[:2],
        left[1].stride(0),
        *right[0].stride()[:2],
        right[1].stride(0),
        *out.stride()[:2],
        lse.stride(0),
        DIM=dim,
        TILE=tile,
    )
    return out, lse


@attrs.frozen
class _Form:
    """Of queries, keys and values: what memory that stands in for them must share."""

    sizes: tuple[tuple[int, int], ...]
    strides: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, inputs: AttentionInputs) -> _Form:
        parts = (inputs.query, inputs.key, inputs.value)
        return cls(
            tuple((part.shape[1], part.shape[2]) for part in parts),
            tuple(part.stride() for part in parts),
        )

    @property
    def packed(self) -> bool:
        """A token's heads of all three lie, without gaps, within one stride."""
        width = sum(heads * dim for heads, dim in self.sizes)
        apart = {stride[0] for stride in self.strides}
        close = all(
            stride[1:] == (dim, 1)
            for stride, (_, dim) in zip(self.strides, self.sizes, strict=True)
        )
        return close and len(apart) == 1 and min(apart) >= width


class Scratch:
    """Queries, keys and values of up to `room` tokens with the strides of a step's own, so that
    calls on either have one shape for the library. The same memory for all layers; none until the
    first use."""

    def __init__(self, room: int, dtype: torch.dtype, device: torch.device) -> None:
        self._room = room
        self._dtype = dtype
        self._device = device
        self._held: Mapping[_Form, AttentionInputs] = MappingProxyType({})

    def like(self, inputs: AttentionInputs) -> AttentionInputs:
        """``[room, heads, dim]`` each, with whatever was in them."""
        form = _Form.of(inputs)
        if form not in self._held:
            made = self._packed(form) if form.packed else self._apart(form)
            self._held = MappingProxyType({**self._held, form: made})
        return self._held[form]

    def _packed(self, form: _Form) -> AttentionInputs:
        """In one tensor, as the outputs of a joint projection are."""
        memory = self._empty(form.strides[0][0])
        ends = [0]
        for heads, dim in form.sizes:
            ends.append(ends[-1] + heads * dim)
        query, key, value = (
            memory[:, begin:end].unflatten(1, size)
            for begin, end, size in zip(ends, ends[1:], form.sizes, strict=False)
        )
        return AttentionInputs(query, key, value)

    def _apart(self, form: _Form) -> AttentionInputs:
        query, key, value = (
            self._empty(stride[0]).as_strided((self._room, *size), stride)
            for size, stride in zip(form.sizes, form.strides, strict=True)
        )
        return AttentionInputs(query, key, value)

    def _empty(self, width: int) -> torch.Tensor:
        return torch.empty((self._room, width), dtype=self._dtype, device=self._device)
