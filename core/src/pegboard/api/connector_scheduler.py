"""The half of a KV connector that plans. Part of `pegboard.api.connector`, which says how the
halves work together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.metrics import PluginMetrics
from pegboard.api.transfer import (
    Allocated,
    Finished,
    Keep,
    Match,
    MatchAnswer,
    Now,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
)
from pegboard.api.transfer_config import KVTransferConfig

if TYPE_CHECKING:
    from pegboard.api.kv import KVGroup

__all__ = ["SchedulerHalf", "SchedulerHalfContext"]


@attrs.frozen(eq=False)
class SchedulerHalfContext:
    """What a scheduler half is built from."""

    config: KVTransferConfig
    groups: tuple[KVGroup, ...]
    unit: int
    """Tokens per entry of `RequestView.block_hashes`. The key of block `entry` of a group with
    block size b is the hash of its last unit, ``block_hashes[(entry + 1) * b // unit - 1]``."""
    border: int
    """Tokens; loads end at multiples of it, where every group has a whole block."""
    identity: Mapping[str, Any]
    """What stored blocks depend on beside their keys, as plain data: model, weights, quantisation,
    dtypes, groups and layouts, hash algorithm, ranks. Engines with equal identities may share."""
    handshakes: tuple[Any, ...]
    """By rank, what `WorkerHalf.attach` returned."""
    longest: Callable[[Sequence[bytes], int, Callable[[int, bytes], bool]], int]
    """``longest(block_hashes, limit, has)``: the most leading tokens, at most `limit` and a
    multiple of the border, with which a request can begin if a store holds exactly the blocks for
    which ``has(group, key)`` is true. It asks only for blocks that are needed (windows and states
    need but the last ones)."""
    connector: Callable[[KVTransferConfig, tuple[Any, ...]], SchedulerHalf]
    """``connector(config, handshakes)`` builds the scheduler half of another connector as a child.
    Raises `MissingPluginError` or `UnsupportedError` as for a connector of its own."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class SchedulerHalf:
    """The half that plans. Called in the engine process, from one thread; no call may block.

    The defaults of this class are a connector that has and saves nothing.
    """

    def match(self, question: Match) -> MatchAnswer:
        """How many more tokens than ``question.computed`` the connector can bring.

        May be called any number of times for one request, in each step while it waits and again
        after a preemption, and must not change anything that matters: a lookup that it starts is
        started once per request and given up in `finished`. The core rounds the answer down to a
        border and to ``question.limit``, and may ignore it.
        """
        return Now(0)

    def allocated(self, what: Allocated) -> None:
        """Blocks were allocated for the tokens of the last answer; called once per load."""

    def step(self, view: StepView) -> StepOrder:
        """What the workers shall do in this step.

        Called for every step that has rows, and for steps without rows while transfers go on or a
        match is pending.
        """
        return StepOrder()

    def finished(self, what: Finished) -> Keep | None:
        """A request ended; called once per request. Returns `Keep` to own its blocks."""
        return None

    def report(self, report: TransferReport) -> None:
        """What the workers told after a step, merged over ranks."""

    def events(self) -> Sequence[StoreEvent]:
        """What came to or left the outside store since the last call. Nobody may ever ask, so at
        most some thousands are worth keeping, the youngest."""
        return ()

    def stats(self) -> Mapping[str, float]:
        """Figures for logs and metrics."""
        return {}

    def reset(self, reason: str) -> None:
        """Forget what was stored, as far as it is no longer right: ``"cache"`` (the prefix cache
        was reset) or ``"weights"`` (new weights)."""

    def close(self) -> None:
        """The engine stops."""
