"""Surface *executor*: the only thing of the engine that reaches tensors. It owns runners, here or
elsewhere.

The core registers ``local`` (in this process) and ``ranks`` (a process for each of
``tensor_parallel_size`` devices); ``distributed_executor_backend`` asks for one by name.

Called by: `EngineCore`. Order: `load`, `kv_slots`, `profile`, `allocate`, `warm_up`, then
`execute` for each step, at last `close`. One whose engine can sleep is a
`pegboard.api.executor_sleep.SleepingExecutor`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import attrs
import msgspec

from pegboard.api.executor_class import ExecutorClass
from pegboard.api.kv import KVCacheConfig, KVSlot
from pegboard.api.metrics import PluginMetrics
from pegboard.api.step import LateInputs, StepPlan, StepResult
from pegboard.api.transfer import ConnectorLink

__all__ = ["Executor", "ExecutorClass", "ExecutorContext", "MemoryProfile", "Pending"]


class MemoryProfile(msgspec.Struct):
    """Bytes on the device, measured around a dummy run of the largest step."""

    total: int
    free: int
    weights: int
    peak_activations: int
    cache_limit: int | None = None
    """Most bytes that a cache should take unless the user asks for more; None for no such limit."""

    def cache_bytes(self, utilization: float) -> int:
        """Bytes left for the KV cache: the usable share of the device less weights and
        activations."""
        usable = (
            min(int(self.total * utilization) - self.weights, self.free) - self.peak_activations
        )
        usable = max(0, usable)
        return usable if self.cache_limit is None else min(usable, self.cache_limit)


class Pending(Protocol):
    """A step that was started."""

    def sample(self, late: LateInputs) -> None:
        """Give what was missing and sample.

        Called once, before the next plan is executed; not at all for a step that is given up.
        """
        ...

    def result(self) -> StepResult:
        """Wait for the tokens. What went wrong in `execute` or `sample` may be raised here."""
        ...


class Executor(Protocol):
    """Runs plans, in the order given.

    A plan may be executed while earlier ones run. It must see what they leave, in slots and in
    blocks, and it must disturb none of them: it reads the tokens that they sample from where they
    were written on the device, and writes nothing (no forward pass, copy or transfer) before their
    forward passes are over.
    """

    @property
    def max_in_flight(self) -> int:
        """Steps that may be executed before the result of the first of them is taken, at least 1.

        1 if a step needs tokens of the one before from the host.
        """
        ...

    def load(self) -> None:
        """Build the model and load its weights. Raises before allocating if it cannot fit."""
        ...

    def kv_slots(self) -> tuple[KVSlot, ...]: ...

    def profile(self) -> MemoryProfile: ...

    def allocate(self, cache: KVCacheConfig) -> None:
        """Make the cache's tensors."""
        ...

    def warm_up(self) -> None: ...

    def execute(self, plan: StepPlan) -> Pending:
        """Start the forward pass of a plan."""
        ...

    def connect(self) -> ConnectorLink:
        """Attach the KV connector's worker halves to the cache. Called after `allocate`, and only
        if ``kv_transfer_config`` names a connector."""
        ...

    def facts(self) -> dict[str, Any]:
        """Device, attention backend per group, op choices: plain values for banner and bug
        reports."""
        ...

    def close(self) -> None: ...


@attrs.frozen
class ExecutorContext:
    """What an executor is built from."""

    config: Any
    """`pegboard.EngineConfig`."""
    model: Any
    """The model as it was understood before a device was chosen:
    `pegboard.config.model.ResolvedModel`."""
    board: Any
    """What is installed, for the core's own executors: `pegboard.plugins.Board`."""
    build: Callable[[str], Executor]
    """Builds another executor for the same engine, by its registered name, to go around it."""
    progress: Callable[[int, int], Any] | None = None
    """To be called with (bytes loaded, bytes in all) while weights stream in."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""
