"""The class that KV connectors of vLLM derive from, in as far as `pegboard_legacy_vllm.scheduler`
and `pegboard_legacy_vllm.worker` call it."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from pegboard_legacy_vllm.sealed import Sealed, SealedValue, sealed

__all__ = [
    "UNUSED",
    "BlockRemoved",
    "BlockStored",
    "KVCacheEvent",
    "KVConnectorBase_V1",
    "KVConnectorMetadata",
    "KVConnectorRole",
    "SupportsHMA",
]

UNUSED = (
    "bind_gpu_block_pool",
    "build_connector_worker_meta",
    "get_finished_count",
    "get_handshake_metadata",
    "get_required_kvcache_layout",
    "handle_preemptions",
    "has_pending_push_work",
    "prefer_cross_layer_blocks",
    "register_cross_layers_kv_cache",
    "set_host_xfer_buffer_ops",
    "set_xfer_handshake_metadata",
    "set_xfer_handshake_metadata_pp_aware",
)
"""Parts of vLLM's class that nobody calls here: a class that has one of them needs more."""


class KVConnectorRole(enum.Enum):
    """Where an instance works."""

    SCHEDULER = 0
    WORKER = 1


@sealed
class KVConnectorMetadata(metaclass=Sealed):
    """Base of what the scheduler side tells the worker side in each step; it is pickled."""


@sealed
class KVConnectorBase_V1(metaclass=Sealed):  # noqa: N801 (it is vLLM's name)
    """Base of both sides."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any = None):
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._role = role
        self._connector_metadata: KVConnectorMetadata | None = None

    @property
    def role(self) -> KVConnectorRole:
        """The side."""
        return self._role

    # Worker side

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Called before the methods of a step."""
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """Called after them."""
        self._connector_metadata = None

    def _get_connector_metadata(self) -> KVConnectorMetadata:
        assert self._connector_metadata is not None, "there is metadata only within a step"
        return self._connector_metadata

    def has_connector_metadata(self) -> bool:
        """Whether this is within a step."""
        return self._connector_metadata is not None

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Tensors by layer, each [2, blocks, tokens of a block, heads, head size]."""

    @abstractmethod
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None: ...

    @abstractmethod
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None: ...

    @abstractmethod
    def wait_for_save(self) -> None: ...

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests that are sent, and that are received."""
        return None, None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that were not filled since the last call."""
        return set()

    def shutdown(self) -> None:
        """The engine stops."""

    # Scheduler side

    @abstractmethod
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]: ...

    @abstractmethod
    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None: ...

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata: ...

    def on_new_request(self, request: Any) -> None:
        """A request is seen for the first time."""

    def update_connector_output(self, connector_output: Any) -> None:
        """What the worker side told."""

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Whether the blocks are kept until they are sent, and what the client is told."""
        return False, None

    def take_events(self) -> Iterable[Any]:
        """What came to or left the store."""
        return ()

    def reset_cache(self) -> bool | None:
        """Forget what is stored."""
        return None


@sealed
class SupportsHMA(metaclass=Sealed):
    """Of connectors that are told of the blocks of all KV groups."""

    @abstractmethod
    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]: ...


@sealed
class KVCacheEvent(SealedValue):
    """Base of events."""


@sealed
class BlockStored(KVCacheEvent):
    """Blocks came to the store."""

    def __init__(self, block_hashes: list[Any], *args: Any, medium: str | None = None, **more: Any):
        self.block_hashes, self.medium = list(block_hashes), medium


@sealed
class BlockRemoved(KVCacheEvent):
    """Blocks left the store."""

    def __init__(self, block_hashes: list[Any], medium: str | None = None, **more: Any):
        self.block_hashes, self.medium = list(block_hashes), medium
