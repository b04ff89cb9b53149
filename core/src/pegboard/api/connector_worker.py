"""The half of a KV connector beside the cache. Part of `pegboard.api.connector`, which says how the
halves work together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.metrics import PluginMetrics
from pegboard.api.transfer import TransferReport
from pegboard.api.transfer_config import KVTransferConfig

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVCacheConfig, KVTensors

__all__ = ["WorkerHalf", "WorkerHalfContext"]


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


class WorkerHalf:
    """The half beside the tensors. Called in the process that holds the device, in the order
    ``attach``, then per step ``drop…, start_load, (wait_layer, save_layer)…, wait_save, poll``.

    The defaults of this class do nothing.
    """

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> Any:
        """The cache's storage, one `KVTensors` per slot that has its own; `KVTensors.page` is one
        block of it. Returns plain data for the scheduler half (addresses, ports), or None.

        Called again after `detach`, with new storage of the same form; the scheduler half is not
        told what that returns.
        """
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
