"""Rows of a vocabulary that are shared out over ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import torch

from pegboard.api.model import BuildContext
from pegboard.api.platform import Communication
from pegboard.api.quant import ParamSpec

__all__ = ["SharedRows"]


@attrs.frozen(eq=False)
class SharedRows:
    """Which rows of an embedding or a head each rank holds, neighbouring ones; a rank may hold a
    few more than another."""

    spans: tuple[tuple[int, int], ...] = ()
    """``(start, stop)`` per rank; empty if every rank holds all rows."""
    comm: Communication | None = None

    @classmethod
    def of(cls, ctx: BuildContext, wanted: Iterable[tuple[int, ParamSpec]]) -> SharedRows:
        """As the specification of the weight says, which is the first one along axis 0."""
        parallel = ctx.parallel
        specs = [spec for _, spec in wanted if spec.shard_axis == 0 and spec.name == "weight"]
        if parallel.comm is None or not specs:
            return cls()
        spans = tuple(specs[0].span(rank, parallel.world) for rank in range(parallel.world))
        return cls(spans, parallel.comm)

    def lookup(
        self, own: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor
    ) -> torch.Tensor:
        """Vectors ``[T, hidden]`` of ``ids [T]``; `own` finds those of this rank, counted from the
        first one that it holds."""
        if self.comm is None:
            return own(ids)
        start, stop = self.spans[self.comm.rank]
        places = ids - start
        elsewhere = (places < 0) | (places >= stop - start)
        found = own(places.masked_fill(elsewhere, 0))
        return self.comm.all_reduce(found.masked_fill(elsewhere[:, None], 0))

    def join(self, logits: torch.Tensor) -> torch.Tensor:
        """This rank's ``[L, rows]`` to those of all ranks, ``[L, vocab]``."""
        if self.comm is None:
            return logits
        sizes = [stop - start for start, stop in self.spans]
        widest = max(sizes)
        padded = torch.nn.functional.pad(logits, (0, widest - logits.shape[1]))
        joined = self.comm.all_gather(padded, 1)
        if min(sizes) == widest:
            return joined
        pieces = zip(joined.split(widest, 1), sizes, strict=True)
        return torch.cat([piece[:, :size] for piece, size in pieces], 1)
