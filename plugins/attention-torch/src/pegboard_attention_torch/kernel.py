"""The kernel: stores keys and values in the paged cache and attends through torch's SDPA.

Storage of a slot is ``[2 (keys, values), block, token, head, dim]``, so a run of blocks that follow
one another is one plain view ``[tokens, heads, dim]``. The query heads that share a key head are
folded into one axis: ``[kv head, group, queries, dim]`` against keys that are expanded, not copied.

Queries may be float32 in a run whose compute dtype is narrower. Rows with several are then computed
in float32; for a decode row, converting its past would cost more than attending to it, so that is
computed in the compute dtype.
"""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import KVLayout, KVSpec, KVTensors
from pegboard.errors import UnsupportedError
from pegboard_attention_torch.plan import TILE, Pack, Row, StepMetadata, plan_step

__all__ = ["LAYOUT", "TorchKernel"]

LAYOUT = KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim"))


class TorchKernel:
    """Full causal attention of one KV group."""

    def __init__(self, ctx: AttentionContext) -> None:
        spec = ctx.group.spec
        if spec.value_head_size not in (None, spec.head_size):
            raise UnsupportedError(
                f"attention backend 'torch': value_head_size={spec.value_head_size} differs from "
                f"head_size={spec.head_size}"
            )
        self._ctx = ctx

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return (LAYOUT,)

    def plan(self, step: AttentionStep) -> StepMetadata:
        return plan_step(step, self._ctx)

    def forward(
        self,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        metadata: StepMetadata,
    ) -> torch.Tensor:
        cache = kv.data.view(2, -1, *kv.data.shape[3:])
        _store(cache, inputs, metadata)
        query = inputs.query.unflatten(1, (layer.kv_heads, -1))
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        call = _Call(query, cache, kv.data, layer.scale, self._ctx.dtype, out)
        for pack in metadata.packs:
            _attend_pack(call, pack)
        for row in metadata.rows:
            if row.count == 1:
                _attend_one(call, row)
            else:
                _attend_tiles(call, row, metadata)
        return out.flatten(1, 2)


@attrs.frozen(eq=False)
class _Call:
    """One layer's call."""

    query: torch.Tensor
    """[T, kv heads, group, dim]"""
    tokens: torch.Tensor
    """[2, token places, kv heads, dim]: the storage, token by token."""
    blocks: torch.Tensor
    """[2, blocks, tokens of a block, kv heads, dim]: the same storage."""
    scale: float
    dtype: torch.dtype
    """For decode rows."""
    out: torch.Tensor
    """As `query`."""


def _store(cache: torch.Tensor, inputs: AttentionInputs, metadata: StepMetadata) -> None:
    """Write the step's keys and values to ``cache [2, token places, kv heads, dim]``."""
    if metadata.place is not None:
        places = slice(metadata.place, metadata.place + inputs.key.shape[0])
        cache[0, places], cache[1, places] = inputs.key, inputs.value
        return
    cache[0].index_copy_(0, metadata.slots, inputs.key.to(cache.dtype))
    cache[1].index_copy_(0, metadata.slots, inputs.value.to(cache.dtype))


def _keys_values(call: _Call, row: Row, dtype: torch.dtype) -> torch.Tensor:
    """What one request sees: ``[2, kv heads, 1, length, dim]``."""
    if row.start is not None:
        found = call.tokens[:, row.start : row.start + row.length]
    else:
        assert row.blocks is not None
        found = call.blocks.index_select(1, row.blocks).flatten(1, 2)[:, : row.length]
    return found.to(dtype).transpose(1, 2).unsqueeze(2)


def _attend_one(call: _Call, row: Row) -> None:
    """A decode row: the query group takes the place of query tokens."""
    keys, values = _keys_values(call, row, call.dtype).unbind(0)
    grouped = call.query[row.first].unsqueeze(1).to(call.dtype)
    found = F.scaled_dot_product_attention(grouped, keys, values, scale=call.scale)
    call.out[row.first] = found.squeeze(1)


def _attend_tiles(call: _Call, row: Row, metadata: StepMetadata) -> None:
    """A row with several queries: tile by tile, each against the keys up to its own end."""
    group, dtype = call.query.shape[2], call.query.dtype
    keys, values = _keys_values(call, row, dtype).expand(-1, -1, group, -1, -1).unbind(0)
    assert metadata.band is not None
    band = metadata.band.to(dtype)
    for offset in range(0, row.count, TILE):
        count = min(TILE, row.count - offset)
        position = row.length - row.count + offset
        end = position + count
        where = slice(row.first + offset, row.first + offset + count)
        found = F.scaled_dot_product_attention(
            call.query[where].permute(1, 2, 0, 3),
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=metadata.mask(band, position, count),
            scale=call.scale,
        )
        call.out[where] = found.permute(2, 0, 1, 3)


def _attend_pack(call: _Call, pack: Pack) -> None:
    """Many decode rows at once, padded to the longest."""
    rows = pack.queries.shape[0]
    keys, values = (
        part.index_select(0, pack.places)
        .unflatten(0, (rows, pack.length))
        .to(call.dtype)
        .transpose(1, 2)
        for part in call.tokens.unbind(0)
    )
    grouped = call.query.index_select(0, pack.queries).to(call.dtype)
    found = F.scaled_dot_product_attention(
        grouped, keys, values, attn_mask=pack.mask, scale=call.scale
    )
    call.out.index_copy_(0, pack.queries, found.to(call.out.dtype))
