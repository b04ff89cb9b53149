"""Where Hugging Face checkpoints keep the scales of 8-bit keys and values. No torch."""

from __future__ import annotations

from pegboard.api.model import WeightRule

__all__ = ["cache_scale_rules"]


def cache_scale_rules(attention: str, target: str) -> tuple[WeightRule, ...]:
    """Rules for the scales of a layer, which `pegboard.nn.CacheScales` of prefix `target` takes.

    They are called ``k_scale`` and ``v_scale`` and stand in the module of the layer's attention
    (`attention`, e.g. ``"model.layers.{i}.self_attn"``) or in ``k_proj`` and ``v_proj`` within it.
    """
    return (
        WeightRule(attention, target, 0),
        WeightRule(attention, target, 1),
        WeightRule(f"{attention}.k_proj", target, 0),
        WeightRule(f"{attention}.v_proj", target, 1),
    )
