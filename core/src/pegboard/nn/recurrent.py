"""A block whose layers carry a state instead of keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F

from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import ParamSpec
from pegboard.api.recurrent import GatedLinearInputs, GatedLinearLayer
from pegboard.errors import UnsupportedError
from pegboard.nn.layers import Linear, RMSNorm
from pegboard.nn.recurrent_shape import RecurrentShape
from pegboard.nn.weighted import Weighted, dtype_name

__all__ = ["ConvWeight", "RecurrentBlock"]

DECAY_TEMPER = 16.0
"""Divides the logarithm of the decay, so that random weights forget slowly. Source: Yang et al.,
"Gated Linear Attention Transformers with Hardware-Efficient Training", 2024, section 4.4."""


class ConvWeight(Weighted):
    """Taps of a causal convolution, each channel for itself: ``weight [channels, width]``."""

    def __init__(self, ctx: BuildContext, prefix: str, channels: int, width: int) -> None:
        super().__init__(prefix)
        if ctx.parallel.world > 1:
            raise UnsupportedError(
                f"{prefix}: tensor parallelism over {ctx.parallel.world} ranks is not supported yet"
            )
        self._spec = ParamSpec("weight", (channels, width), dtype_name(ctx.dtype))

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        return ((0, self._spec),)

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        self.store("weight", loaded["weight"][0])


class RecurrentBlock(torch.nn.Module):
    """Gated linear recurrence behind a short convolution: ``x [T, hidden] -> [T, hidden]``.

    Weights: ``<prefix>.mix`` with the parts q, k and v, ``<prefix>.decay`` with a bias,
    ``<prefix>.conv``, ``<prefix>.norm`` over each head's result, ``<prefix>.out``. The slot
    `slot_key` must have the specification ``shape.spec()``.
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, shape: RecurrentShape, slot_key: str, eps: float
    ) -> None:
        super().__init__()
        self.slot_key = slot_key
        self.layer = GatedLinearLayer(
            shape.heads, shape.key_size, shape.value_size, shape.conv_width
        )
        hidden, values = shape.hidden_size, shape.heads * shape.value_size
        self.mix = Linear(ctx, f"{prefix}.mix", hidden, shape.parts, "column")
        self.decay = Linear(ctx, f"{prefix}.decay", hidden, (shape.heads,), "column", bias=True)
        self.conv = ConvWeight(ctx, f"{prefix}.conv", self.layer.channels, shape.conv_width)
        self.norm = RMSNorm(ctx, f"{prefix}.norm", shape.value_size, eps)
        self.out = Linear(ctx, f"{prefix}.out", values, (hidden,), "row")

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        kv = batch.kv[self.slot_key]
        group = batch.groups[kv.group]
        inputs = GatedLinearInputs(
            mixed=self.mix(x, batch),
            log_decay=F.logsigmoid(self.decay(x, batch).float()) / DECAY_TEMPER,
            conv_weight=self.conv.runtime["weight"],
        )
        found = group.kernel.forward(self.layer, inputs, kv, group.metadata)
        mixed: torch.Tensor = self.out(self.norm(found, batch).flatten(1), batch)
        return mixed
