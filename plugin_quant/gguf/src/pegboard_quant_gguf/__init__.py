"""GGUF checkpoints and their number formats for Pegboard.

One distribution, two surfaces: the checkpoint source ``gguf`` and the quantisation ``gguf``.
"""

from __future__ import annotations

from pegboard.api.checkpoint import CheckpointSource
from pegboard.api.hooks import hookimpl
from pegboard.api.quant import QuantFormat

PEGBOARD_API = {"checkpoint": 0, "quant": 0}

_BLOCK_TYPES = ("Q8_0", "Q4_0", "Q4_1")


@hookimpl
def pegboard_checkpoint_sources() -> tuple[CheckpointSource, ...]:
    """GGUF files, alone or in parts."""
    return (
        CheckpointSource(
            name="gguf",
            probe="pegboard_quant_gguf.source:probe",
            open="pegboard_quant_gguf.source:open_checkpoint",
            stored_types=_BLOCK_TYPES,
        ),
    )


@hookimpl
def pegboard_quant_formats() -> tuple[QuantFormat, ...]:
    """The block types that this version computes with."""
    return (
        QuantFormat(
            name="gguf",
            quantizer="pegboard_quant_gguf.quantizer:quantizer",
            stored_types=_BLOCK_TYPES,
            covers=("linear", "embedding", "head"),
        ),
    )
