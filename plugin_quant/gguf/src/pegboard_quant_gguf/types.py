"""The tensor types of GGUF: id, name and block layout. Nothing here imports torch.

A GGUF tensor is a list of rows; each row is a whole number of blocks; a block holds `block_size`
elements in `block_bytes` bytes. Ids and sizes are those of the public GGUF specification.
"""

from __future__ import annotations

from types import MappingProxyType

import attrs

__all__ = ["REMOVED_TYPES", "SUPPORTED_TYPES", "TYPES", "TYPES_BY_NAME", "GgufType"]


@attrs.frozen
class GgufType:
    """One stored type."""

    type_id: int
    name: str
    block_size: int
    """Elements in one block; the row length must be a multiple of it."""
    block_bytes: int

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements; `columns` must be a multiple of `block_size`."""
        assert columns % self.block_size == 0
        return columns // self.block_size * self.block_bytes

    @property
    def plain(self) -> bool:
        """True for types whose elements stand alone (F32, I8, ...), false for block formats."""
        return self.block_size == 1


_TABLE: tuple[tuple[int, str, int, int], ...] = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
)

TYPES = MappingProxyType({row[0]: GgufType(*row) for row in _TABLE})
"""Every current type by id."""

TYPES_BY_NAME = MappingProxyType({kind.name: kind for kind in TYPES.values()})
"""Every current type by name."""

REMOVED_TYPES = MappingProxyType(
    {
        4: "Q4_2",
        5: "Q4_3",
        31: "Q4_0_4_4",
        32: "Q4_0_4_8",
        33: "Q4_0_8_8",
        36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8",
        38: "IQ4_NL_8_8",
    }
)
"""Types that older files may carry and that the specification has withdrawn."""

SUPPORTED_TYPES = (
    *("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
)
"""Types that this version computes with; the others are refused by name."""
