"""The KV connector's place in the runner: its worker half, called around each forward pass.

A worker half that breaks down is logged, and what it was to load has failed; the step goes on.
`NoWorker` stands in where there is no connector.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from pegboard.api.attention import AttentionInputs, AttentionKernel, AttentionLayer, AttentionStep
from pegboard.api.connector import FailedBlock, Load, TransferReport, WorkerHalf
from pegboard.api.kv import KVCacheConfig, KVLayout, KVSpec, KVTensors
from pegboard.api.step import StepPlan
from pegboard.logging import get_logger

__all__ = ["LayerwiseKernel", "NoWorker", "Worker"]

PAUSE = 0.0005
"""Seconds that a step without rows waits if nothing was over: nobody is in a hurry for the next."""


class NoWorker:
    """No connector."""

    def begin(self, plan: StepPlan) -> None:
        """The copies of a plan are made, its forward pass comes next."""

    def end(self, plan: StepPlan) -> TransferReport | None:
        """The forward pass is submitted; what the worker half tells, if the plan concerned it."""
        return None

    def wrap(self, kernel: AttentionKernel) -> AttentionKernel:
        """The kernel, with calls of the worker half around each layer if it wants them."""
        return kernel

    def close(self) -> None:
        """The engine stops."""


class Worker(NoWorker):
    """A worker half whose faults stay its own."""

    def __init__(self, half: WorkerHalf, *, name: str, layers: Collection[str] = ()) -> None:
        """`layers`: keys of the slots for which it wants to be called; none unless layer-wise."""
        self._half = half
        self._name = name
        self._layers = frozenset(layers)
        self._attached = True
        self._active = False
        """Inside a step that concerns it."""
        self._broken = False
        """Its loads of this step have failed."""
        self._stopped: list[int] = []
        """Loads that were stopped in this step."""

    def begin(self, plan: StepPlan) -> None:
        step = plan.connector
        self._active, self._broken = False, step is not None and step.broken
        self._stopped = []
        if step is None:
            return
        self._stopped = [load_id for load_id in step.dropped if self._drop(load_id)]
        if step.reset is not None:
            reason = step.reset
            self._call("reset", lambda: self._half.reset(reason))
        if not step.broken:
            started = self._call("start_load", lambda: self._half.start_load(step.metadata))
            self._active, self._broken = True, not started

    def end(self, plan: StepPlan) -> TransferReport | None:
        if plan.connector is None:
            return None
        if self._active:
            self._call("wait_save", self._half.wait_save)
        self._active = False
        reports: list[TransferReport] = []
        self._call("poll", lambda: reports.append(self._half.poll()))
        report = reports[0] if reports else TransferReport()
        report.stopped = self._stopped
        if self._broken:
            for load in plan.connector.loads:
                _give_up(load, report)
                # Part of it may have begun before the half broke down, unless it knows of nothing.
                if not plan.connector.broken and not self._drop(load.load_id):
                    report.astray.append(load.load_id)
        if not plan.rows and report.empty:
            time.sleep(PAUSE)
        return report

    def wrap(self, kernel: AttentionKernel) -> AttentionKernel:
        return LayerwiseKernel(kernel, self) if self._layers else kernel

    def before_layer(self, key: str) -> None:
        """Slot `key` is about to be read."""
        if self._active and key in self._layers:
            done = self._call("wait_layer", lambda: self._half.wait_layer(key))
            self._broken = self._broken or not done

    def after_layer(self, key: str) -> None:
        """Slot `key` was written."""
        if self._active and key in self._layers:
            self._call("save_layer", lambda: self._half.save_layer(key))

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> None:
        """New storage in place of that which `detach` was called for. Raises what the half does."""
        self._half.attach(kv, cache, device)
        self._attached = True

    def detach(self) -> None:
        """The storage goes away."""
        if self._attached:
            self._call("detach", self._half.detach)
        self._attached = False

    def close(self) -> None:
        self.detach()
        self._call("close", self._half.close)

    def _drop(self, load_id: int) -> bool:
        """Stop the half from writing to a load's blocks; False if that is not sure."""
        answers: list[bool] = []
        self._call("drop", lambda: answers.append(self._half.drop(load_id)))
        return answers == [True]

    def _call(self, method: str, call: Callable[[], Any]) -> bool:
        """Call the half; False if it failed."""
        try:
            call()
        except Exception as error:
            get_logger("pegboard.connector").warning(
                "the KV connector's worker failed",
                connector=self._name,
                call=method,
                error=f"{type(error).__name__}: {error}",
            )
            return False
        return True


def _give_up(load: Load, report: TransferReport) -> None:
    """Report a load as failed and over."""
    report.failed += [FailedBlock(load.load_id, p.group, p.block) for p in load.pieces]
    if not load.now:
        report.received.append(load.load_id)


class LayerwiseKernel:
    """An attention kernel with the worker half's calls around each layer."""

    def __init__(self, kernel: AttentionKernel, worker: Worker) -> None:
        self._kernel = kernel
        self._worker = worker

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return self._kernel.layouts(spec)

    def plan(self, step: AttentionStep) -> Any:
        return self._kernel.plan(step)

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, metadata: Any
    ) -> torch.Tensor:
        self._worker.before_layer(kv.key)
        attended = self._kernel.forward(layer, inputs, kv, metadata)
        self._worker.after_layer(kv.key)
        return attended
