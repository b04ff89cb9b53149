"""The modules that can be imported under ``vllm``, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pegboard_legacy_vllm import base, registries, values
from pegboard_legacy_vllm.sealed import Sealed, SealedModule, sealed

__all__ = ["ROOT", "Architecture", "stand_in"]

ROOT = "vllm"
MODELS = f"{ROOT}.model_executor.models"
_KV = f"{ROOT}.distributed.kv_transfer.kv_connector"
_ARCHITECTURE = re.compile(r"[A-Z]\w*For[A-Z]\w*")
_REGISTRY = {"ModelRegistry": registries.ModelRegistry}
_BASE = {
    "KVConnectorBase_V1": base.KVConnectorBase_V1,
    "KVConnectorMetadata": base.KVConnectorMetadata,
    "KVConnectorRole": base.KVConnectorRole,
    "SupportsHMA": base.SupportsHMA,
}
_EVENTS = {
    "BlockRemoved": base.BlockRemoved,
    "BlockStored": base.BlockStored,
    "KVCacheEvent": base.KVCacheEvent,
}
_METADATA = {"AttentionMetadata": values.AttentionMetadata}
_MLA = {"MLACommonMetadata": values.MLACommonMetadata}
_TRANSFER = {"KVTransferConfig": values.KVTransferConfig}
_OUTPUT = {
    "CachedRequestData": values.CachedRequestData,
    "NewRequestData": values.NewRequestData,
    "SchedulerOutput": values.SchedulerOutput,
}

CONTENT: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        ROOT: _REGISTRY,
        f"{ROOT}.attention.backends.abstract": _METADATA,
        f"{ROOT}.config": {**_TRANSFER, "VllmConfig": values.VllmConfig},
        f"{ROOT}.config.kv_transfer": _TRANSFER,
        f"{ROOT}.distributed.kv_events": _EVENTS,
        f"{_KV}.factory": {"KVConnectorFactory": registries.KVConnectorFactory},
        f"{_KV}.v1": _BASE,
        f"{_KV}.v1.base": _BASE,
        f"{ROOT}.forward_context": {"ForwardContext": values.ForwardContext},
        f"{ROOT}.logger": {"init_logger": registries.init_logger},
        f"{ROOT}.model_executor.layers.attention.mla_attention": _MLA,
        MODELS: _REGISTRY,
        f"{MODELS}.registry": _REGISTRY,
        f"{ROOT}.v1.attention.backend": _METADATA,
        f"{ROOT}.v1.attention.backends.mla.common": _MLA,
        f"{ROOT}.v1.attention.backends.triton_attn": {
            "TritonAttentionMetadata": values.TritonAttentionMetadata
        },
        f"{ROOT}.v1.core.kv_cache_manager": {"KVCacheBlocks": values.KVCacheBlocks},
        f"{ROOT}.v1.core.sched.output": _OUTPUT,
        f"{ROOT}.v1.kv_cache_interface": {"KVCacheConfig": values.KVCacheConfig},
        f"{ROOT}.v1.outputs": {"KVConnectorOutput": values.KVConnectorOutput},
        f"{ROOT}.v1.request": {"Request": values.Request},
    }
)
"""By module. The packages between them are empty."""


@sealed
class Architecture(metaclass=Sealed):
    """Base of the classes that stand for vLLM's models: only their names mean something."""


class _Models(SealedModule):
    """One of the modules of vLLM's models, whichever it is."""

    def __getattr__(self, name: str) -> Any:
        if not _ARCHITECTURE.fullmatch(name):
            return super().__getattr__(name)
        vars(self)[name] = sealed(Sealed(name, (Architecture,), {"__module__": self.__name__}))
        return vars(self)[name]


def _packages() -> frozenset[str]:
    parts = [name.split(".") for name in CONTENT]
    return frozenset(".".join(p[:depth]) for p in parts for depth in range(1, len(p) + 1))


_NAMES = _packages()
_MADE: dict[str, SealedModule] = {}
"""Every module is made once: packages hold on to them and compare classes."""


def stand_in(name: str) -> SealedModule | None:
    """The module of this name, or None if there is none."""
    if name not in _MADE:
        model = name.startswith(f"{MODELS}.") and name.count(".") == MODELS.count(".") + 1
        if name in _NAMES:
            below = (n for n in _NAMES if n.startswith(f"{name}."))
            children = frozenset(n[len(name) + 1 :].partition(".")[0] for n in below)
            _MADE[name] = SealedModule(name, CONTENT.get(name, {}), children)
        elif model:
            _MADE[name] = _Models(name, {}, frozenset())
        else:
            return None
    return _MADE[name]


def is_package(name: str) -> bool:
    """Whether there may be modules below it."""
    return any(other.startswith(f"{name}.") for other in _NAMES)
