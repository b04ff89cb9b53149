"""Weights: from a checkpoint's files to a model's layers.

Reading headers and matching names needs no torch, so the heavy half is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pegboard.weights.resolve import ResolvedWeights

if TYPE_CHECKING:
    from pegboard.weights.build import load_model
    from pegboard.weights.loader import load_weights

__all__ = ["ResolvedWeights", "load_model", "load_weights"]


def __getattr__(name: str) -> Any:
    """Import what brings torch in only when it is asked for (PEP 562)."""
    if name == "load_model":
        from pegboard.weights.build import load_model

        return load_model
    if name == "load_weights":
        from pegboard.weights.loader import load_weights

        return load_weights
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
