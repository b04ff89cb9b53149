"""Sizes that no checkpoint of these tensors can have are refused before anything is made of them.

A family makes one cache slot per layer and a module per weight as soon as it has read its
configuration, so a number that is wrong by orders of magnitude would cost time and memory first and
give an error later. Here it is compared with what the checkpoint holds, whatever the family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pegboard.api.checkpoint import Checkpoint
from pegboard.api.kv import ChunkedLocalSpec, FullAttentionSpec, SlidingWindowSpec
from pegboard.api.model import ModelFacts
from pegboard.errors import CheckpointError

__all__ = ["MAX_LAYERS", "check_layer_counts", "check_sizes"]

MAX_LAYERS = 4096
"""Most layers of a model whose tensors are not numbered (or not there, with random weights)."""
MAX_SIZE = 2**31 - 1
"""Largest hidden size, vocabulary or head count: sizes of tensors are products of them."""
_LAYER_COUNT = re.compile(
    r"(\w+\.)?(num_(hidden_)?layers|n_layers?|block_count|((en|de)coder_)?layers)"
)
"""Names that configurations of every kind have for their number of layers."""
_TEXT_PARTS = ("text_config", "language_config", "llm_config")
"""Parts of a configuration whose layers must be there; those of others may have been taken out."""
_NUMBER = re.compile(r"(?:^|\.)(\d{1,9})(?=\.)")
_HARMLESS = 2**20
"""So many weights cost nothing; the loader will name what does not agree."""
_BITS = 8
"""A weight takes at least one bit, so a byte of the file holds at most this many."""


def check_layer_counts(checkpoint: Checkpoint) -> None:
    """Refuse more layers than the tensors are of, by the numbers in their names.

    Raises `CheckpointError` naming the key.
    """
    highest = _highest_number(checkpoint.tensors)
    most = MAX_LAYERS if highest is None else min(highest + 1, len(checkpoint.tensors))
    why = f"at most {MAX_LAYERS}" if highest is None else f"the tensors are of {most} layers"
    for key, value in _layer_counts(checkpoint.config):
        if value > most:
            raise CheckpointError(f"{checkpoint.path}: {key}={value} is not allowed: {why}")
    for key, part in checkpoint.config.items():
        for inner, value in _layer_counts(part) if isinstance(part, Mapping) else ():
            if value > (most if key in _TEXT_PARTS else MAX_LAYERS):
                raise CheckpointError(
                    f"{checkpoint.path}: {key}.{inner}={value} is not allowed: {why}"
                )


def check_sizes(checkpoint: Checkpoint, facts: ModelFacts) -> None:
    """Refuse sizes whose weights would be larger than the whole checkpoint.

    The embedding has ``vocab_size * hidden_size`` weights, and what computes a layer's keys
    ``kv_heads * head_size * hidden_size``. Raises `CheckpointError` naming the sizes.
    """
    _check_each(checkpoint, facts)
    if not checkpoint.tensors:
        return
    stored = sum(tensor.nbytes for tensor in checkpoint.tensors.values())
    room = max(_BITS * stored, _HARMLESS)
    hidden = facts.hidden_size
    products = {f"vocab_size={facts.vocab_size}": facts.vocab_size}
    for spec in {slot.spec for slot in facts.kv_slots}:
        if isinstance(spec, (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalSpec)):
            heads, size = spec.kv_heads, spec.head_size
            products[f"{heads} key-value heads of size {size}"] = heads * size
    for what, size in products.items():
        if size * hidden > room:
            raise CheckpointError(
                f"{checkpoint.path}: hidden_size={hidden} with {what} is not allowed: that is "
                f"{size * hidden} weights, and all tensors together have {stored} bytes"
            )


def _check_each(checkpoint: Checkpoint, facts: ModelFacts) -> None:
    for name in ("hidden_size", "vocab_size", "max_positions"):
        value = getattr(facts, name)
        if not 1 <= value <= MAX_SIZE:
            raise CheckpointError(
                f"{checkpoint.path}: {name}={value} is not allowed: from 1 to {MAX_SIZE}"
            )


def _layer_counts(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Keys that count layers, with their values; what is no number is for the family to refuse."""
    for key, value in config.items():
        if _LAYER_COUNT.fullmatch(key) and isinstance(value, (int, float)):
            yield key, value


def _highest_number(names: Iterable[str]) -> int | None:
    """The highest number that is a part of a dotted name; None if no name has one."""
    numbers = (int(number) for name in names for number in _NUMBER.findall(name))
    return max(numbers, default=None)
