"""The GGUF block types pass the conformance kit."""

from __future__ import annotations

import torch

from pegboard_quant_gguf import pegboard_quant_formats
from pegboard_quant_gguf.dequant import dequantise_rows
from pegboard_quant_gguf.testing import quantise_rows
from pegboard_testkit.quant_kit import QuantKit, StoredPart


class TestGguf(QuantKit):
    (format,) = pegboard_quant_formats()
    cases = ("Q4_0", "Q4_1", "Q8_0")

    def part(self, case: str, outputs: int, seed: int) -> StoredPart:
        draw = torch.Generator().manual_seed(seed)
        stored = quantise_rows(torch.randn(outputs, self.in_features, generator=draw), case)
        return StoredPart({"weight": (case, stored)}, dequantise_rows(stored, case).double())
