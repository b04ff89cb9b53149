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

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.connector_scheduler import SchedulerHalf, SchedulerHalfContext
    from pegboard.api.connector_worker import WorkerHalf, WorkerHalfContext
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

if not TYPE_CHECKING:
    __getattr__ = late_exports(
        __name__, __all__, "transfer", "transfer_config", "connector_scheduler", "connector_worker"
    )


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
