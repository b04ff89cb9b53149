"""The kernel: stores keys and values in the paged cache and attends through torch's SDPA.

Where keys and values lie is in `places`. The query heads that share a key head are folded into one
axis: ``[kv head, group, queries, dim]`` against keys that are expanded, not copied.
"""

from __future__ import annotations

import attrs
import torch
import torch.nn.functional as F

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import KVLayout, KVSpec, KVTensors
from pegboard.errors import UnsupportedError
from pegboard_attention_torch.places import LAYOUTS, Places
from pegboard_attention_torch.plan import TILE, Pack, Row, StepMetadata, plan_step

__all__ = ["TorchKernel"]


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
        return LAYOUTS

    def plan(self, step: AttentionStep) -> StepMetadata:
        return plan_step(step, self._ctx)

    def forward(
        self,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        metadata: StepMetadata,
    ) -> torch.Tensor:
        places = Places(kv)
        places.write(metadata.slots, inputs.key, inputs.value)
        query = inputs.query.unflatten(1, (layer.kv_heads, -1))
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        call = _Call(query, places, layer.scale, out)
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
    places: Places
    scale: float
    out: torch.Tensor
    """As `query`."""


def _keys_values(call: _Call, row: Row) -> torch.Tensor:
    """What one request sees: ``[2, kv heads, 1, length, dim]`` in the dtype of the query."""
    if row.start is not None:
        found = call.places.run(row.start, row.length)
    else:
        assert row.blocks is not None
        found = call.places.scattered(row.blocks, row.length)
    return found.to(call.query.dtype).transpose(1, 2).unsqueeze(2)


def _attend_one(call: _Call, row: Row) -> None:
    """A decode row: the query group takes the place of query tokens."""
    keys, values = _keys_values(call, row).unbind(0)
    grouped = call.query[row.first].unsqueeze(1)
    found = F.scaled_dot_product_attention(grouped, keys, values, scale=call.scale)
    call.out[row.first] = found.squeeze(1)


def _attend_tiles(call: _Call, row: Row, metadata: StepMetadata) -> None:
    """A row with several queries: tile by tile, each against the keys up to its own end."""
    group = call.query.shape[2]
    keys, values = _keys_values(call, row).expand(-1, -1, group, -1, -1).unbind(0)
    for offset in range(0, row.count, TILE):
        count = min(TILE, row.count - offset)
        position = row.length - row.count + offset
        end = position + count
        where = slice(row.first + offset, row.first + offset + count)
        found = F.scaled_dot_product_attention(
            call.query[where].permute(1, 2, 0, 3),
            keys[:, :, :end],
            values[:, :, :end],
            attn_mask=metadata.mask(position, count),
            scale=call.scale,
        )
        call.out[where] = found.permute(2, 0, 1, 3)


def _attend_pack(call: _Call, pack: Pack) -> None:
    """Many decode rows at once, padded to the longest."""
    rows = pack.queries.shape[0]
    keys, values = (
        call.places.gather(part, pack.places)
        .unflatten(0, (rows, pack.length))
        .to(call.query.dtype)
        .transpose(1, 2)
        for part in (0, 1)
    )
    grouped = call.query.index_select(0, pack.queries)
    found = F.scaled_dot_product_attention(
        grouped, keys, values, attn_mask=pack.mask, scale=call.scale
    )
    call.out.index_copy_(0, pack.queries, found)
