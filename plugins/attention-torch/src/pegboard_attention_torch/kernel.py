"""The kernel: stores keys and values in the paged cache and attends through torch's SDPA.

The query heads that share a key head are folded into one axis: ``[kv head, group, queries, dim]``
against keys that are expanded, not copied. Scores with a soft cap, which SDPA does not have, are
computed step by step in float32.

Keys and values in a cache of 8-bit floats are converted as they are read; the scales of the layer
multiply scores and results instead of them.

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
from pegboard_attention_torch.plan import Pack, Row, StepMetadata, Tile, plan_step
from pegboard_attention_torch.store import FP8, LAYOUTS, Store

__all__ = ["TorchKernel"]


class TorchKernel:
    """Full, sliding-window and chunked causal attention of one KV group."""

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
        store = Store(kv)
        store.write(metadata.slots, metadata.place, layer, inputs)
        query = inputs.query.unflatten(1, (layer.kv_heads, -1))
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        coded = kv.data.dtype == FP8
        call = _Call(query, store, _on_codes(layer) if coded else layer, self._ctx.dtype, out)
        for pack in metadata.packs:
            _attend_pack(call, pack)
        for row in metadata.rows:
            if row.tiles:
                _attend_tiles(call, row, metadata)
            else:
                _attend_one(call, row)
        if coded and layer.v_scale is not None:
            out *= layer.v_scale
        return out.flatten(1, 2)


def _on_codes(layer: AttentionLayer) -> AttentionLayer:
    """The layer for keys without their scale, which multiplies the scores instead."""
    if layer.k_scale is None:
        return layer
    return attrs.evolve(layer, scale=layer.scale * float(layer.k_scale))


@attrs.frozen(eq=False)
class _Call:
    """One layer's call."""

    query: torch.Tensor
    """[T, kv heads, group, dim]"""
    store: Store
    layer: AttentionLayer
    dtype: torch.dtype
    """For decode rows."""
    out: torch.Tensor
    """As `query`."""

    def attend(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``query [..., q, dim]``, keys and values ``[..., k, dim]``, mask as ``[..., q, k]``."""
        layer = self.layer
        if layer.soft_cap is not None:
            return _attend_capped(layer.scale, layer.soft_cap, query, keys, values, mask)
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, scale=layer.scale
        )


def _attend_capped(
    scale: float,
    cap: float,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax attention with scores bounded by `cap` before the mask is added."""
    scores = query.float() @ keys.float().transpose(-1, -2)
    scores.mul_(scale / cap).tanh_().mul_(cap)
    if mask is not None:
        scores += mask
    return (scores.softmax(-1) @ values.float()).to(query.dtype)


def _attend_one(call: _Call, row: Row) -> None:
    """A decode row: the query group takes the place of query tokens."""
    keys, values = call.store.row(row, call.dtype).unbind(0)
    grouped = call.query[row.first].unsqueeze(1).to(call.dtype)
    call.out[row.first] = call.attend(grouped, keys, values).squeeze(1)


def _attend_tiles(call: _Call, row: Row, metadata: StepMetadata) -> None:
    """A row with several queries: tile by tile, each against the keys that its queries see."""
    dtype = call.query.dtype
    keys, values = call.store.row(row, dtype).unbind(0)
    assert metadata.band is not None
    band = metadata.band.to(dtype)
    attend = _attend_tile if call.layer.soft_cap is None else _attend_folded_tile
    for tile in row.tiles:
        seen = slice(tile.begin - row.begin, tile.position + tile.count - row.begin)
        where = slice(tile.first, tile.first + tile.count)
        mask = metadata.mask(band, tile)
        call.out[where] = attend(call, tile, keys[:, :, seen], values[:, :, seen], mask)


def _attend_tile(
    call: _Call, tile: Tile, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """``[count, kv heads, group, dim]``; keys and values are ``[kv heads, 1, k, dim]``."""
    query = call.query[tile.first : tile.first + tile.count].permute(1, 2, 0, 3)
    group = query.shape[1]
    shared_keys, shared_values = (part.expand(-1, group, -1, -1) for part in (keys, values))
    return call.attend(query, shared_keys, shared_values, mask).permute(2, 0, 1, 3)


def _attend_folded_tile(
    call: _Call, tile: Tile, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """The same with group and queries as one axis, for plain products would copy expanded keys."""
    query = call.query[tile.first : tile.first + tile.count].permute(1, 2, 0, 3)
    group, count = query.shape[1:3]
    folded = query.flatten(1, 2).unsqueeze(1)
    attended = call.attend(folded, keys, values, mask.repeat(group, 1)).squeeze(1)
    found: torch.Tensor = attended.unflatten(1, (group, count))
    return found.permute(2, 0, 1, 3)


def _attend_pack(call: _Call, pack: Pack) -> None:
    """Many decode rows at once, padded to the longest."""
    keys, values = call.store.pack(pack, call.dtype)
    grouped = call.query.index_select(0, pack.queries).to(call.dtype)
    found = call.attend(grouped, keys, values, pack.mask)
    call.out.index_copy_(0, pack.queries, found.to(call.out.dtype))
