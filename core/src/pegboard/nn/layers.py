"""Layers with weights: linear, embedding, output head, norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import LayerKind, LayerSpec, LinearMethod, ParallelRole, ParamSpec
from pegboard.nn.plain import shard_axis
from pegboard.nn.vocabulary import SharedRows
from pegboard.nn.weighted import Weighted, dtype_name

__all__ = ["Embedding", "Head", "Linear", "RMSNorm", "layer_spec"]


def layer_spec(
    ctx: BuildContext,
    prefix: str,
    kind: LayerKind,
    sizes: tuple[int, int | Sequence[int]],
    **more: Any,
) -> LayerSpec:
    """The specification of one layer; `sizes` are in_features and the part size or sizes."""
    parts = (sizes[1],) if isinstance(sizes[1], int) else tuple(sizes[1])
    return LayerSpec(
        prefix,
        kind,
        sizes[0],
        parts,
        rank=ctx.parallel.rank,
        world=ctx.parallel.world,
        sources=tuple(ctx.sources(prefix, len(parts))),
        **more,
    )


class _Owned(Weighted):
    """A leaf whose weights belong to a `LinearMethod`."""

    def __init__(self, ctx: BuildContext, layer: LayerSpec) -> None:
        super().__init__(layer.prefix)
        self.layer = layer
        self.method = cast("LinearMethod", ctx.method(layer))

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        layer = self.layer
        return tuple(
            (part, layer.shared(part, spec))
            for part in range(len(layer.part_sizes))
            for spec in self.method.parameters(part)
        )

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        self.runtime = dict(self.method.finalise(loaded, self.runtime or None))


class Linear(_Owned):
    """``x [T, in_features] -> [T, sum(parts)]``: products of several stored matrices in one, e.g.
    q, k and v.

    `role` says how tensor parallelism splits it: ``column`` by outputs, of which each rank gets its
    share of every part, ``row`` by inputs, of which each rank brings its share and gets the whole
    sum. `copies`, as `LayerSpec.copies`.
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        in_features: int,
        parts: Sequence[int],
        role: ParallelRole = "replicated",
        *,
        bias: bool = False,
        copies: tuple[int, ...] = (),
    ) -> None:
        sizes = (in_features, parts)
        super().__init__(ctx, layer_spec(ctx, prefix, "linear", sizes, role=role, copies=copies))
        self._comm = ctx.parallel.comm if role == "row" else None
        self.bias: torch.Tensor | None = None
        self._bias_dtype = dtype_name(ctx.dtype) if bias else None

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        if self._bias_dtype is None:
            return super().wanted()
        axis = 0 if shard_axis(self.layer.role) == 0 else None
        biases = tuple(
            (part, self.layer.shared(part, ParamSpec("bias", (size,), self._bias_dtype, axis)))
            for part, size in enumerate(self.layer.part_sizes)
        )
        return super().wanted() + biases

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        super().take({name: parts for name, parts in loaded.items() if name != "bias"})
        if self._bias_dtype is None:
            return
        joined = torch.cat(tuple(loaded["bias"]))
        if self.bias is None:
            self.bias = joined
        else:
            self.bias.copy_(joined)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        y = self.method.apply(self.runtime, x)
        if self._comm is not None:
            y = self._comm.all_reduce(y)
        return y if self.bias is None else y.add_(self.bias)

    def runtime_bytes(self) -> int:
        return super().runtime_bytes() + (0 if self.bias is None else self.bias.nbytes)


class Embedding(_Owned):
    """Token ids ``[T]`` to vectors ``[T, hidden]``. `tied`: a `Head` will use these weights too.

    `scale`, rounded to the compute dtype, multiplies what is looked up (not the weights that a tied
    head computes with, and not embeddings that a request brings).
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        vocab_size: int,
        hidden_size: int,
        tied: bool = False,
        *,
        scale: float | None = None,
    ) -> None:
        sizes = (hidden_size, vocab_size)
        super().__init__(ctx, layer_spec(ctx, prefix, "embedding", sizes, role="vocab", tied=tied))
        self.scale = None if scale is None else torch.tensor(scale).to(ctx.dtype).item()
        self.rows = SharedRows.of(ctx, self.wanted())

    def forward(self, ids: torch.Tensor, batch: Batch) -> torch.Tensor:
        """The batch's own embeddings where it brings them, else those of `ids`."""
        if batch.embeddings is not None:
            return batch.embeddings
        found = self.rows.lookup(lambda own: self.method.lookup(self.runtime, own), ids)
        return found if self.scale is None else found * self.scale


class Head(_Owned):
    """Hidden states ``[L, hidden]`` to logits ``[L, vocab]``, with weights of its own or those of
    an embedding.

    A tied head wants nothing: it computes through the weight owner of the embedding, whatever its
    number format. With `soft_cap` the logits go through the op of that name.
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        vocab_size: int,
        hidden_size: int,
        tied: Embedding | None = None,
        *,
        soft_cap: float | None = None,
    ) -> None:
        if tied is None:
            sizes = (hidden_size, vocab_size)
            super().__init__(ctx, layer_spec(ctx, prefix, "head", sizes, role="vocab"))
            self.rows = SharedRows.of(ctx, super().wanted())
        else:
            Weighted.__init__(self, prefix)
            self.layer, self.method, self.rows = tied.layer, tied.method, tied.rows
        self.tied = tied
        self.soft_cap = soft_cap
        self._bound = ctx.ops["soft_cap"]

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        return super().wanted() if self.tied is None else ()

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        owner = self.tied if self.tied is not None else self
        logits = self.rows.join(self.method.apply(owner.runtime, x))
        if self.soft_cap is not None:
            logits = self._bound(logits, self.soft_cap)
        return logits


class RMSNorm(Weighted):
    """Root-mean-square norm over the last axis, alone or joined with the addition of a residual.

    `wide`: the weight stays in float32 and the result is rounded once, after the product with it,
    whatever the compute dtype.
    """

    def __init__(
        self, ctx: BuildContext, prefix: str, size: int, eps: float, *, wide: bool = False
    ) -> None:
        super().__init__(prefix)
        self.eps = eps
        self.wide = wide and ctx.dtype != torch.float32
        dtype = torch.float32 if self.wide else ctx.dtype
        self._spec = ParamSpec("weight", (size,), dtype_name(dtype))
        self._norm = ctx.ops["rms_norm"]
        self._add_norm = ctx.ops["add_rms_norm"]

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        return ((0, self._spec),)

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        self.store("weight", loaded["weight"][0])

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        given = x.float() if self.wide else x
        normed: torch.Tensor = self._norm(given, self.runtime["weight"], self.eps)
        return normed.to(x.dtype)

    def add(
        self, x: torch.Tensor, residual: torch.Tensor | None, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """``(norm(x + residual), x + residual)``; without a residual `x` begins one. Both inputs
        may be consumed.
        """
        if residual is None:
            return self(x, batch), x
        if self.wide:
            total = x + residual
            return self(total, batch), total
        added: tuple[torch.Tensor, torch.Tensor] = self._add_norm(
            x, residual, self.runtime["weight"], self.eps
        )
        return added
