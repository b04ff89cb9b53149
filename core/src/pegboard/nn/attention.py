"""Where a model meets the paged cache."""

from __future__ import annotations

import torch

from pegboard.api.attention import AttentionInputs, AttentionLayer
from pegboard.api.kv import KVTensors
from pegboard.api.model import Batch, BuildContext

__all__ = ["Attention"]


class Attention(torch.nn.Module):
    """Attention of one layer over one cache slot; storage, kernel and metadata come with the batch.

    `slot_key` names the slot, as `KVSlot.key` has it. `scale` multiplies the scores; None for
    ``head_size ** -0.5``. `soft_cap` bounds them, see `AttentionLayer`.
    """

    def __init__(
        self,
        ctx: BuildContext,
        slot_key: str,
        heads: int,
        kv_heads: int,
        head_size: int,
        scale: float | None = None,
        soft_cap: float | None = None,
    ) -> None:
        super().__init__()
        self._store = ctx.ops["store_kv"]
        self.slot_key = slot_key
        self.layer = AttentionLayer(
            heads, kv_heads, head_size, head_size**-0.5 if scale is None else scale, soft_cap
        )

    def forward(self, inputs: AttentionInputs, batch: Batch) -> torch.Tensor:
        """Store the step's keys and values, attend; ``[T, heads, head_size]``."""
        kv = batch.kv[self.slot_key]
        group = batch.groups[kv.group]
        if group.write_slots is not None:
            self._store(inputs.key, inputs.value, kv, group.write_slots)
        return group.kernel.forward(self.layer, inputs, kv, group.metadata)

    def attend(self, inputs: AttentionInputs, batch: Batch) -> torch.Tensor:
        """Attend only: keys and values are in the cache already."""
        kv = batch.kv[self.slot_key]
        group = batch.groups[kv.group]
        return group.kernel.forward(self.layer, inputs, kv, group.metadata)

    def place(self, batch: Batch) -> tuple[KVTensors, torch.Tensor | None]:
        """This layer's cache, and `GroupBatch.write_slots` of its group."""
        kv = batch.kv[self.slot_key]
        return kv, batch.groups[kv.group].write_slots
