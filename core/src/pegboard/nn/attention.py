"""Where a model meets the paged cache."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from pegboard.api.attention import AttentionInputs, AttentionLayer
from pegboard.api.kv import KVTensors
from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import ParamSpec, SourceTensor
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard.nn.cache_ops import Scales
from pegboard.nn.weighted import Weighted

__all__ = ["Attention", "CacheScales"]


class CacheScales(Weighted):
    """What keys (``k_scale``, part 0) and values (``v_scale``, part 1) in a cache of 8-bit floats
    are multiples of: a number each, 1 where the checkpoint has none. `cache_scale_rules` are the
    rules of a weight map that find them.

    Raises `UnsupportedError` for a stored scale that is not one number.
    """

    def __init__(self, ctx: BuildContext, prefix: str) -> None:
        super().__init__(prefix)
        names = ("k_scale", "v_scale")
        self._wanted = tuple(
            (part, _scale_spec(source))
            for part, sources in enumerate(ctx.sources(prefix, len(names)))
            for source in sources
            if source.name.rpartition(".")[2] == names[part]
        )
        self.runtime = {name: torch.ones((), device=ctx.device) for name in names}

    @property
    def scales(self) -> Scales:
        """Of keys and of values, float32 ``[]``: always the same tensors."""
        return self.runtime["k_scale"], self.runtime["v_scale"]

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        return self._wanted

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        for name, (stored,) in loaded.items():
            number = float(stored)
            if not math.isfinite(number) or number <= 0:
                raise CheckpointError(
                    f"{self.prefix}: {name}={number} is not allowed: a finite number above 0"
                )
            self.store(name, stored.reshape(()))


def _scale_spec(source: SourceTensor) -> ParamSpec:
    if math.prod(source.shape) != 1:
        raise UnsupportedError(
            f"tensor {source.name!r} has shape {list(source.shape)}; supported is one scale for "
            "all heads of a layer"
        )
    return ParamSpec(source.name.rpartition(".")[2], source.shape, "float32")


class Attention(torch.nn.Module):
    """Attention of one layer over one cache slot; storage, kernel and metadata come with the batch.

    `slot_key` names the slot, as `KVSlot.key` has it. `scale` multiplies the scores; None for
    ``head_size ** -0.5``. `soft_cap` bounds them, see `AttentionLayer`. `prefix` is that of the
    layer's `CacheScales`; None: it has none.
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
        *,
        prefix: str | None = None,
    ) -> None:
        super().__init__()
        self._store = ctx.ops["store_kv"]
        self.slot_key = slot_key
        self.cache = None if prefix is None else CacheScales(ctx, prefix)
        self.scales: Scales | None = None if self.cache is None else self.cache.scales
        """As the ops that store take them."""
        k_scale, v_scale = self.scales or (None, None)
        factor = head_size**-0.5 if scale is None else scale
        self.layer = AttentionLayer(
            heads, kv_heads, head_size, factor, soft_cap, k_scale=k_scale, v_scale=v_scale
        )

    def forward(self, inputs: AttentionInputs, batch: Batch) -> torch.Tensor:
        """Store the step's keys and values, attend; ``[T, heads, head_size]``."""
        kv = batch.kv[self.slot_key]
        group = batch.groups[kv.group]
        if group.write_slots is not None:
            self._store(inputs.key, inputs.value, kv, group.write_slots, self.scales)
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
