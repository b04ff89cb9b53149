"""Weights in 8-bit floating point (e4m3) for Pegboard: as stored, or made from wider ones."""

from __future__ import annotations

from pegboard.api.hooks import hookimpl
from pegboard.api.quant import QuantFormat

PEGBOARD_API = {"quant": 0}


@hookimpl
def pegboard_quant_formats() -> tuple[QuantFormat, ...]:
    """One format for the two ways in which checkpoints describe it."""
    return (
        QuantFormat(
            name="fp8",
            quantizer="pegboard_quant_fp8.quantizer:quantizer",
            methods=("fp8", "compressed-tensors"),
            stored_types=("F8_E4M3",),
            covers=("linear", "embedding", "head"),
        ),
    )
