"""The model kit with a module of transformers, or one like it, as the reference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pegboard_testkit.model_kit import ModelKit

__all__ = ["SIZES", "PretrainedKit"]

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 67,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
"""Of a small model, by the names that its configuration has in transformers."""


class PretrainedKit(ModelKit):
    """Subclass it with `family` and `build`, under a name that begins with ``Test``."""

    def build(self) -> Any:
        """A model with random weights, which has ``save_pretrained(folder)``; called with ids
        ``[1, n]``, its answer has ``logits``, ``[1, n, vocabulary]``."""
        raise AssertionError(f"{type(self).__name__} must define build()")

    @cached_property
    def reference(self) -> Any:
        """What `build` gives, with the same weights each time."""
        torch.manual_seed(3)
        return self.build().eval()

    def checkpoint(self, folder: Path) -> Path:
        self.reference.save_pretrained(folder)
        return folder

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.reference(torch.tensor([ids])).logits[0]
        return logits
