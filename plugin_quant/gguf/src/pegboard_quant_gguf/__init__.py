"""GGUF checkpoints and their number formats for Pegboard.

One distribution, two surfaces: the checkpoint source ``gguf`` and the quantisation ``gguf``.
"""

from __future__ import annotations

from pegboard.api.checkpoint import CheckpointSource
from pegboard.api.hooks import hookimpl
from pegboard.api.quant import QuantFormat
from pegboard_quant_gguf.types import SUPPORTED_TYPES, TYPES_BY_NAME

PEGBOARD_API = {"checkpoint": 0, "quant": 0}

_BLOCK_TYPES = tuple(name for name in SUPPORTED_TYPES if not TYPES_BY_NAME[name].plain)


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
