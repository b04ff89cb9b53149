"""The worker half: a KV connector of vLLM beside the cache."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pegboard.api.connector import FailedBlock, TransferReport, WorkerHalf, WorkerHalfContext
from pegboard_legacy_vllm.base import KVConnectorRole
from pegboard_legacy_vllm.messages import LoadNote, StepNote
from pegboard_legacy_vllm.paths import Path
from pegboard_legacy_vllm.proxy import Proxy
from pegboard_legacy_vllm.values import AttentionMetadata, ForwardContext

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVCacheConfig, KVTensors

__all__ = ["LegacyWorker", "half"]

_AXES = ("kv", "block", "token", "head", "dim")


class LegacyWorker(WorkerHalf):
    """Half of a connector that a package registered with vLLM.

    Layers are saved when the forward pass is submitted, all at once, so that steps can still be
    recorded as one graph.
    """

    def __init__(self, targets: Sequence[tuple[str, str]], ctx: WorkerHalfContext) -> None:
        self._targets = targets
        self._config = ctx.config
        self._built: Proxy | None = None
        self._caches: dict[str, Any] = {}
        self._note: StepNote | None = None
        self._now: list[LoadNote] = []
        self._lost: list[LoadNote] = []
        """Of this step, those that the connector does not know of."""
        self._later: dict[str, LoadNote] = {}
        """Loads between steps that are not over, by request."""
        self._keeps: dict[str, int] = {}
        self._bad: set[int] = set()

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> Any:
        self._caches = {_layer_name(tensors.key): _by_sides(tensors) for tensors in kv}
        if self._built is None:
            (group,) = [group for group in cache.groups if group.slot_bytes()]
            dtype = getattr(group.spec, "dtype", "auto")
            role = KVConnectorRole.WORKER
            self._built = Proxy(self._targets, role, self._config, group.block_size, dtype)
        self._built.call("register_kv_caches", dict(self._caches))
        return None

    def start_load(self, metadata: Any) -> None:
        self._note, self._now, self._lost, self._bad = None, [], [], set()
        if metadata is None:
            return
        note = StepNote.read(metadata)
        self._now = [load for load in note.loads if load.now and load.known]
        self._later |= {load.request_id: load for load in note.loads if not load.now and load.known}
        self._lost = [load for load in note.loads if not load.known]
        self._keeps |= note.kept
        self._note = note
        self._proxy.call("bind_connector_metadata", pickle.loads(note.pickled))
        self._proxy.call("start_load_kv", ForwardContext(self._caches))
        for name in self._caches if note.rows else ():
            self._proxy.call("wait_for_layer_load", name)
        self._look_for_errors()

    def drop(self, load_id: int) -> bool:
        """A connector of vLLM cannot be stopped: blocks of a load between steps are free when it
        tells that the load is over."""
        return all(load.load_id != load_id for load in self._later.values())

    def wait_save(self) -> None:
        # What was computed from blocks that could not be filled must not be found by others.
        if self._note is None or not self._note.rows or self._bad or not self._config.saves:
            return
        for name, cache in self._caches.items():
            self._proxy.call("save_kv_layer", name, cache, AttentionMetadata())
        self._proxy.call("wait_for_save")

    def poll(self) -> TransferReport:
        if self._built is None:
            return TransferReport()
        ended = set(self._note.finished) if self._note is not None else set()
        sent, received = self._proxy.call("get_finished", ended)
        self._look_for_errors()
        failed = [
            FailedBlock(load.load_id, 0, block)
            for load in (*self._now, *self._lost, *self._later.values())
            for block in load.blocks
            if block in self._bad or not load.known
        ]
        over = [self._later.pop(name) for name in received or () if name in self._later]
        over += [load for load in self._lost if not load.now]
        if self._note is not None:
            self._proxy.call("clear_connector_metadata")
        self._note, self._now, self._lost, self._bad = None, [], [], set()
        return TransferReport(
            received=[load.load_id for load in over],
            failed=failed,
            sent=[self._keeps.pop(name) for name in sent or () if name in self._keeps],
        )

    def detach(self) -> None:
        self._caches = {}

    def close(self) -> None:
        if self._built is not None:
            self._built.call("shutdown")

    @property
    def _proxy(self) -> Proxy:
        assert self._built is not None, "nothing is called before attach"
        return self._built

    def _look_for_errors(self) -> None:
        self._bad |= set(self._proxy.call("get_block_ids_with_load_errors") or ())


def _layer_name(key: str) -> str:
    """The name that vLLM gives to the layer of a slot; connectors read its number from it."""
    return f"model.layers.{key.partition('.')[0]}.self_attn.attn"


def _by_sides(tensors: KVTensors) -> torch.Tensor:
    """The storage as [2, blocks, tokens of a block, heads, head size]."""
    return tensors.data.permute([tensors.layout.axes.index(axis) for axis in _AXES])


half = Path(LegacyWorker)
"""``half.package.module.Class`` makes a half of that class."""
