"""The plain kernels of recurrent mixers, which the core brings as it brings plain ops."""

from __future__ import annotations

from pegboard.api.attention import AttentionBackend
from pegboard.api.recurrent import GATED_LINEAR, STATE_BORDERS

__all__ = ["PLAIN_MIXERS"]

PLAIN_MIXERS = (
    AttentionBackend(
        name="plain",
        kernel="pegboard.nn.mixers:PlainGatedLinear",
        kinds=("recurrent",),
        mixers=(GATED_LINEAR,),
        features=frozenset({STATE_BORDERS}),
        priority=-100,
    ),
)
"""Serve every platform that torch serves; any other backend that fits is preferred."""
