"""The descriptor of surface *executor*, apart from its contract: the board imports it at start-up,
when nothing else of `pegboard.api.executor` is wanted."""

from __future__ import annotations

from typing import Literal

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref

__all__ = ["ExecutorClass"]


@attrs.frozen
class ExecutorClass:
    """Descriptor of an executor. ``distributed_executor_backend=name`` asks for it."""

    name: str
    build: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(ExecutorContext) -> Executor``. Quick: weights are read in `Executor.load`."""
    ranks: Literal["one", "several", "any"] = "one"
    """Which ``tensor_parallel_size`` it serves; another is refused by name."""

    def claims(self) -> tuple[str, ...]:
        return ()
