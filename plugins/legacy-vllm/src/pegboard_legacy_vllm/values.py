"""What a KV connector of vLLM is shown: requests, blocks, one step, the configuration.

Names and meanings are those of vLLM's classes; each has the part of their attributes that small
connectors read, and refuses the others by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from pegboard.api.connector import KVTransferConfig as OurConfig
from pegboard.api.views import BlocksView, RequestView
from pegboard_legacy_vllm.sealed import SealedValue, sealed

__all__ = [
    "AttentionMetadata",
    "Blocks",
    "CachedRequestData",
    "Facts",
    "ForwardContext",
    "KVCacheBlocks",
    "KVCacheConfig",
    "KVConnectorOutput",
    "KVTransferConfig",
    "MLACommonMetadata",
    "NewRequestData",
    "Request",
    "SchedulerOutput",
    "TritonAttentionMetadata",
    "VllmConfig",
    "block_ids",
    "cached_requests",
]

Blocks = tuple[list[int], ...]


def block_ids(view: BlocksView) -> Blocks:
    """Ids by KV group; 0 stands for none and is left out."""
    return tuple([block for block in group if block] for group in view.groups)


@sealed
class Request(SealedValue):
    """A request, as it was when the connector was last told of it."""

    def __init__(self, view: RequestView) -> None:
        self.view = view

    @property
    def request_id(self) -> str:
        return self.view.request_id

    @property
    def prompt_token_ids(self) -> list[int]:
        return list(self.view.prompt_ids)

    @property
    def output_token_ids(self) -> list[int]:
        return list(self.view.output_ids)

    @property
    def all_token_ids(self) -> list[int]:
        return [*self.view.prompt_ids, *self.view.output_ids]

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.view.prompt_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.view.output_ids)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_output_tokens

    @property
    def num_computed_tokens(self) -> int:
        return self.view.computed

    @property
    def block_hashes(self) -> list[bytes]:
        return list(self.view.block_hashes)

    @property
    def kv_transfer_params(self) -> dict[str, Any] | None:
        return self.view.kv_transfer

    @property
    def sampling_params(self) -> Any:
        return self.view.params

    @property
    def cache_salt(self) -> str | None:
        return self.view.cache_salt

    @property
    def priority(self) -> int:
        return self.view.priority

    @property
    def arrival_time(self) -> float:
        return self.view.arrival

    @property
    def mm_features(self) -> Any:
        """Of a request without media: none. Others are refused, for two images of equal size have
        equal tokens."""
        return self.__getattr__("mm_features") if self.view.media else []

    @property
    def lora_request(self) -> Any:
        """As `mm_features`."""
        return None if self.view.adapter is None else self.__getattr__("lora_request")


@sealed
class KVCacheBlocks(SealedValue):
    """Blocks of a request."""

    def __init__(self, ids: Blocks) -> None:
        self._ids = ids

    def get_block_ids(self) -> Blocks:
        """By KV group."""
        return self._ids


@sealed
class NewRequestData(SealedValue):
    """A request that is scheduled for the first time."""

    pooling_params = None
    prompt_embeds = None

    def __init__(self, request: Request, blocks: Blocks, computed: int) -> None:
        self.req_id = request.request_id
        self.prompt_token_ids = request.prompt_token_ids
        self.sampling_params = request.sampling_params
        self.block_ids = blocks
        self.num_computed_tokens = computed
        self._request = request

    @property
    def mm_features(self) -> Any:
        """As of `Request`."""
        return self._request.mm_features

    @property
    def lora_request(self) -> Any:
        """As of `Request`."""
        return self._request.lora_request


@sealed
@attrs.define(slots=False, kw_only=True)
class CachedRequestData(SealedValue):
    """Requests that were scheduled before, one entry of each list per request."""

    req_ids: list[str] = attrs.field(factory=list)
    resumed_req_ids: set[str] = attrs.field(factory=set)
    resumed_from_preemption: list[bool] = attrs.field(factory=list)
    new_token_ids: list[list[int]] = attrs.field(factory=list)
    all_token_ids: dict[str, list[int]] = attrs.field(factory=dict)
    """Of resumed requests."""
    new_block_ids: list[Blocks | None] = attrs.field(factory=list)
    """Of resumed requests all blocks."""
    num_computed_tokens: list[int] = attrs.field(factory=list)
    num_output_tokens: list[int] = attrs.field(factory=list)

    @property
    def num_reqs(self) -> int:
        return len(self.req_ids)


@sealed
@attrs.define(slots=False, kw_only=True)
class SchedulerOutput(SealedValue):
    """One step."""

    scheduled_new_reqs: list[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    finished_req_ids: set[str]
    preempted_req_ids: set[str]
    scheduled_spec_decode_tokens: dict[str, list[int]] = attrs.field(factory=dict)
    scheduled_encoder_inputs: dict[str, list[int]] = attrs.field(factory=dict)
    num_common_prefix_blocks: list[int] = attrs.field(factory=list)
    free_encoder_mm_hashes: list[str] = attrs.field(factory=list)
    kv_connector_metadata: None = None


@sealed
@attrs.define(slots=False, kw_only=True)
class KVConnectorOutput(SealedValue):
    """What the worker side told."""

    finished_sending: set[str] | None = None
    finished_recving: set[str] | None = None
    invalid_block_ids: set[int] = attrs.field(factory=set)


@sealed
class AttentionMetadata(SealedValue):
    """Handed to `save_kv_layer`. Nothing of it is known: what a step computes stands in the
    connector's own metadata."""


@sealed
class MLACommonMetadata(AttentionMetadata):
    """Of another layout, which no step here has: connectors ask whether theirs is one."""


@sealed
class TritonAttentionMetadata(AttentionMetadata):
    """As `MLACommonMetadata`."""


@sealed
class KVCacheConfig(SealedValue):
    """For annotations."""


@sealed
class _Layer(SealedValue):
    """A layer of `ForwardContext.no_compile_layers`."""

    def __init__(self, kv_cache: Any) -> None:
        self.kv_cache = [kv_cache]


@sealed
class ForwardContext(SealedValue):
    """Handed to `start_load_kv`."""

    virtual_engine = 0

    def __init__(self, caches: Mapping[str, Any]) -> None:
        self.no_compile_layers = {name: _Layer(cache) for name, cache in caches.items()}
        self.attn_metadata = {name: AttentionMetadata() for name in caches}


@sealed
class Facts(SealedValue):
    """A part of the configuration."""

    def __init__(self, called: str, **facts: Any) -> None:
        vars(self).update(facts, called=called)


@sealed
class KVTransferConfig(SealedValue):
    """``kv_transfer_config``."""

    def __init__(self, config: OurConfig) -> None:
        self.kv_connector = config.kv_connector
        self.kv_role = config.kv_role
        self.engine_id = config.engine_id
        self.kv_connector_extra_config = dict(config.kv_connector_extra_config)
        self.kv_load_failure_policy = config.kv_load_failure_policy
        self.is_kv_producer = config.saves
        self.is_kv_consumer = config.loads
        self.is_kv_transfer_instance = True

    def get_from_extra_config(self, key: str, default: Any) -> Any:
        """One of the connector's own settings."""
        return self.kv_connector_extra_config.get(key, default)


@sealed
class VllmConfig(SealedValue):
    """The configuration of an engine of one rank."""

    def __init__(self, config: OurConfig, block_size: int, dtype: str) -> None:
        self.kv_transfer_config = KVTransferConfig(config)
        self.cache_config = Facts("cache_config", block_size=block_size, cache_dtype=dtype)
        self.parallel_config = Facts(
            "parallel_config",
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            data_parallel_size=1,
            world_size=1,
            rank=0,
        )


def cached_requests(rows: Sequence[tuple[Request, bool, Blocks, int]]) -> CachedRequestData:
    """Of requests that were scheduled before: (request, whether it is resumed, new blocks, tokens
    computed)."""
    data = CachedRequestData()
    for request, resumed, blocks, computed in rows:
        data.req_ids.append(request.request_id)
        data.resumed_from_preemption.append(resumed)
        data.new_token_ids.append([])
        data.new_block_ids.append(blocks if any(blocks) else None)
        data.num_computed_tokens.append(computed)
        data.num_output_tokens.append(max(computed - request.num_prompt_tokens, 0))
        if resumed:
            data.resumed_req_ids.add(request.request_id)
            data.all_token_ids[request.request_id] = request.all_token_ids
    return data
