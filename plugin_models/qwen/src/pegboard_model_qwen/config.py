"""From a checkpoint's raw configuration to the family's. No torch."""

from __future__ import annotations

from collections.abc import Callable

from pegboard.api.model import ConfigInput
from pegboard.errors import CheckpointError
from pegboard_model_qwen.gguf import from_gguf
from pegboard_model_qwen.hf import from_hf
from pegboard_model_qwen.settings import QwenConfig

__all__ = ["QwenConfig", "read_config"]


def read_config(source: ConfigInput) -> QwenConfig:
    """Read and check every key.

    Raises `ConfigError` for a bad value and `UnsupportedError` for a feature that is not built,
    both naming the key; `CheckpointError` for a kind of checkpoint that the family cannot read.
    """
    readers: dict[str, Callable[[ConfigInput], QwenConfig]] = {"hf": from_hf, "gguf": from_gguf}
    if source.kind not in readers:
        known = ", ".join(readers)
        raise CheckpointError(f"the qwen family reads checkpoints of kind {known}: {source.kind!r}")
    return readers[source.kind](source)
