"""What the content of KV blocks depends on beside their keys."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.__about__ import __version__
from pegboard.api.kv import KVCacheConfig, KVGroup, KVLayout
from pegboard.config.alias import AliasedCheckpoint
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.kv import ALGORITHM
from pegboard.nn.optable import PLAIN

if TYPE_CHECKING:
    from pegboard.plugins import Board
    from pegboard.runner.setup import OpenedDevice

__all__ = ["engine_identity", "parts_of"]


def engine_identity(
    model: ResolvedModel,
    config: EngineConfig,
    cache: KVCacheConfig,
    layouts: Sequence[KVLayout],
    weights: str,
    plugins: Sequence[str],
) -> dict[str, Any]:
    """Plain data; engines for which it is equal compute the same block for the same key.

    `weights` stands for all bytes of the weights: `WeightSums.digest`, or what decides random ones;
    nothing is said of where they lie, so that two machines with copies of one checkpoint agree.
    `plugins` are those that had a part in the blocks, with versions and settings
    (`pegboard.plugins.Board.signatures`).
    """
    return {
        "engine": __version__,
        "hash": ALGORITHM,
        "architecture": model.architecture,
        "family": model.family.name,
        "config": _digest_of_mapping(model.checkpoint.config),
        "weights": weights,
        "dtype": model.dtype,
        "quantization": config.quantization,
        "quantised": model.quantised,
        "block_size": config.block_size,
        "page_bytes": cache.page_bytes,
        "lanes": cache.lanes,
        "groups": [_group(group) for group in cache.groups],
        "layouts": [[layout.name, *layout.axes] for layout in layouts],
        "ranks": 1,
        "plugins": list(plugins),
    }


def parts_of(board: Board, opened: OpenedDevice, formats: set[str]) -> set[tuple[str, str]]:
    """(surface, name) of what is on the board and has a part in the content of blocks; `formats`
    are the quantisations that own layers."""
    backends = {name for one in opened.attention for name in one.backend.name.split("+")}
    checkpoint = opened.model.checkpoint
    aliases = {checkpoint.alias} if isinstance(checkpoint, AliasedCheckpoint) else set()
    found = {
        "alias": aliases,
        "attention": backends & set(board.registry("attention").names()),
        "checkpoint": {checkpoint.kind},
        "model": {opened.model.family.name},
        "ops": set(opened.ops.choices().values()) - {PLAIN},
        "platform": {opened.platform},
        "quant": formats,
    }
    return {(surface, name) for surface, names in found.items() for name in names}


def _group(group: KVGroup) -> dict[str, Any]:
    spec = json.loads(json.dumps(attrs.asdict(group.spec)))  # tuples become lists
    return {"block_size": group.block_size, "slots": list(group.slots), "spec": spec}


def _digest_of_mapping(config: Mapping[str, Any]) -> str:
    text = json.dumps(dict(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
