"""Surface *connector*: keys and values that come from outside and go outside.

A connector has two halves. The *scheduler half* lives where steps are planned and sees no tensors;
one *worker half* per rank lives beside the KV cache. They speak only through the metadata of each
step and through reports::

    engine process                                     each worker
    match ─► allocated ─► step ──metadata (StepPlan)──► start_load ─► (forward) ─► wait_save ─► poll
      ▲                     ▲  ◄────── report ────────── TransferReport (StepResult) ────────────┘
    new request          finished

**Loading.** When a request is about to start, `match` says how many more of its leading tokens the
connector can bring. The core allocates their blocks, tells `allocated`, and hands the load to the
next `step`. A `Now` load is read by that very step; for a `Later` load the request waits, other
requests go on. Loaded blocks enter the prefix cache only after the load was reported good.

**Failed loads.** The worker names the blocks that could not be filled, and never raises for them.
With ``kv_load_failure_policy="recompute"`` the request begins again at the first bad block, with
``"fail"`` it ends with an error; no other request is touched, and bad blocks are never shared.
If a load is given up, because its time is up say, its blocks are used again only once the worker
reported it as received, or `WorkerHalf.drop` returned: the core calls that itself, so that nothing
depends on the scheduler half's health.

**Saving.** Whenever blocks are complete they appear as `filled` in the next step's view, with the
key for the outside store. The worker may save them at any time in that step; whoever needs longer
names them in `StepOrder.holds`. At the end of a request `finished` may keep all of its blocks.

**Faults.** If a half raises, the core logs it and goes on as if the connector had nothing: a match
is a miss, loads have failed, nothing is kept. A breach of this contract (a wrong type, an ability
not declared, a hold on a free block) raises `PluginError` and stops the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics
from pegboard.api.transfer import (
    Admitted,
    Allocated,
    ConnectorLink,
    ConnectorStep,
    FailedBlock,
    Finished,
    Keep,
    Later,
    Load,
    Match,
    MatchAnswer,
    Now,
    Pending,
    Piece,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
)
from pegboard.api.transfer_config import KVTransferConfig

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVCacheConfig, KVGroup, KVTensors

__all__ = [
    "Admitted",
    "Allocated",
    "ConnectorAbilities",
    "ConnectorLink",
    "ConnectorStep",
    "FailedBlock",
    "Finished",
    "KVConnector",
    "KVTransferConfig",
    "Keep",
    "Later",
    "Load",
    "Match",
    "MatchAnswer",
    "Now",
    "Pending",
    "Piece",
    "SchedulerHalf",
    "SchedulerHalfContext",
    "StepOrder",
    "StepView",
    "StoreEvent",
    "TransferReport",
    "WorkerHalf",
    "WorkerHalfContext",
]


@attrs.frozen
class ConnectorAbilities:
    """What a connector can do; the core refuses by name what it cannot."""

    groups: bool = False
    """Models with several KV groups."""
    kinds: tuple[str, ...] = ("full",)
    """Kinds of groups (`KVSpec.kind`); empty means any."""
    asynchronous: bool = False
    """May answer `Pending` and `Later`, keep blocks and name holds."""
    layerwise: bool = False
    """Wants `wait_layer` and `save_layer`, which rules out graphs of the whole step."""
    layouts: tuple[str, ...] = ()
    """Names of the KV layouts (`KVLayout.name`) that it can read and write; empty means any."""


@attrs.frozen
class KVConnector:
    """Descriptor.

    `scheduler` refers to ``(ctx: SchedulerHalfContext) -> SchedulerHalf`` and must not import
    torch, `worker` refers to ``(ctx: WorkerHalfContext) -> WorkerHalf``. Both should refuse a bad
    ``ctx.config.kv_connector_extra_config`` with a `ConfigError`.
    """

    name: str
    """As in ``kv_transfer_config={"kv_connector": name}``."""
    scheduler: LazyRef = attrs.field(converter=lazy_ref)
    worker: LazyRef = attrs.field(converter=lazy_ref)
    abilities: ConnectorAbilities = ConnectorAbilities()

    def claims(self) -> tuple[str, ...]:
        return ()


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


@attrs.frozen(eq=False)
class WorkerHalfContext:
    """What a worker half is built from."""

    config: KVTransferConfig
    identity: Mapping[str, Any]
    """As in `SchedulerHalfContext`."""
    rank: int
    ranks: int
    connector: Callable[[KVTransferConfig], WorkerHalf]
    """Builds the worker half of another connector as a child; raises as the scheduler's does."""
    settings: Any = None
    """As in `SchedulerHalfContext`."""
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


class WorkerHalf:
    """The half beside the tensors. Called in the process that holds the device, in the order
    ``attach``, then per step ``drop…, start_load, (wait_layer, save_layer)…, wait_save, poll``.

    The defaults of this class do nothing.
    """

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> Any:
        """The cache's storage, one `KVTensors` per slot that has its own; `KVTensors.page` is one
        block of it. Returns plain data for the scheduler half (addresses, ports), or None."""
        return None

    def start_load(self, metadata: Any) -> None:
        """Begin a step, with the scheduler half's metadata.

        `Now` loads must be in place when this returns (in the order of the device's stream), or,
        with the ability `layerwise`, when `wait_layer` returns. `Later` loads are only begun.
        Called after the step's block copies and before its forward pass; also without rows.
        """

    def drop(self, load_id: int) -> bool:
        """A load was given up: nothing is written to its blocks once this returned True.

        Called before `start_load`, also in steps for which the scheduler half broke down, and when
        a method of this half raised for a step that begins the load. If it returns False or raises,
        the blocks stay reserved, and it is called again in each step. Unknown loads, and those that
        were dropped before, are no fault. The load may still be reported.

        The default is right for a half that writes only inside its other methods. With the ability
        `asynchronous` or `layerwise` a half must have its own.
        """
        return True

    def wait_layer(self, key: str) -> None:
        """Slot `key` is about to be read. Only with the ability `layerwise`."""

    def save_layer(self, key: str) -> None:
        """Slot `key` was written by this step. Only with the ability `layerwise`."""

    def wait_save(self) -> None:
        """The forward pass is submitted; return when whatever this step saves is safe from being
        overwritten, except the blocks that the scheduler half holds."""

    def poll(self) -> TransferReport:
        """What is over. Called once after each step; must not block."""
        return TransferReport()

    def detach(self) -> None:
        """The cache's storage goes away (sleep); stop touching it. `attach` may follow."""

    def reset(self, reason: str) -> None:
        """As `SchedulerHalf.reset`."""

    def close(self) -> None:
        """The engine stops; called once, after `detach`."""
