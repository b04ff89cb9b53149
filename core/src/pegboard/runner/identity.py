"""What the content of KV blocks depends on beside their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from pegboard.__about__ import __version__
from pegboard.api.checkpoint import Checkpoint, StoredTensor
from pegboard.api.kv import KVCacheConfig, KVGroup, KVLayout
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.kv import ALGORITHM

__all__ = ["engine_identity"]

_SAMPLES = 3
"""Rows read of each tensor: the first, the middle and the last one."""


def engine_identity(
    model: ResolvedModel, config: EngineConfig, cache: KVCacheConfig, layouts: Sequence[KVLayout]
) -> dict[str, Any]:
    """Plain data; engines for which it is equal compute the same block for the same key.

    Weights are told apart by name, shape, stored type and a sample of their rows, not by where they
    lie, so that two machines with copies of one checkpoint agree.
    """
    return {
        "engine": __version__,
        "hash": ALGORITHM,
        "architecture": model.architecture,
        "family": model.family.name,
        "config": _digest_of_mapping(model.checkpoint.config),
        "weights": _digest_of_weights(model.checkpoint, config.load_format),
        "dtype": model.dtype,
        "quantization": config.quantization,
        "quantised": model.quantised,
        "block_size": config.block_size,
        "page_bytes": cache.page_bytes,
        "lanes": cache.lanes,
        "groups": [_group(group) for group in cache.groups],
        "layouts": [[layout.name, *layout.axes] for layout in layouts],
        "ranks": 1,
    }


def _group(group: KVGroup) -> dict[str, Any]:
    spec = json.loads(json.dumps(attrs.asdict(group.spec)))  # tuples become lists
    return {"block_size": group.block_size, "slots": list(group.slots), "spec": spec}


def _digest_of_mapping(config: Mapping[str, Any]) -> str:
    text = json.dumps(dict(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _digest_of_weights(checkpoint: Checkpoint, load_format: str) -> str:
    if load_format == "dummy":
        return "dummy"
    digest = hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        tensor = checkpoint.tensors[name]
        facts = [name, list(tensor.shape), tensor.stored_type, tensor.nbytes]
        digest.update(json.dumps(facts).encode())
        for rows in _sample(tensor):
            digest.update(rows.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _sample(tensor: StoredTensor) -> list[torch.Tensor]:
    if len(tensor.shape) < 2:
        return [tensor.read().reshape(-1)]
    last = tensor.shape[0] - 1
    places = sorted({last * number // (_SAMPLES - 1) for number in range(_SAMPLES)} - {-1})
    return [tensor.read(place, place + 1) for place in places]
