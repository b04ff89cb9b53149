"""The e4m3 format passes the conformance kit, with each kind of scale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from pegboard_quant_fp8 import pegboard_quant_formats
from pegboard_quant_fp8.codes import CODES
from pegboard_testkit.quant_kit import QuantKit, StoredPart

BLOCK = 16
CHANNEL = {
    "targets": ["Linear", "Embedding"],
    "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
}


class TestFp8(QuantKit):
    (format,) = pegboard_quant_formats()
    cases = ("tensor", "block", "channel")

    def config(self, case: str) -> Mapping[str, Any]:
        if case == "channel":
            return {"quant_method": "compressed-tensors", "config_groups": {"a": CHANNEL}}
        block = {"weight_block_size": [BLOCK, BLOCK]} if case == "block" else {}
        return {"quant_method": "fp8", "activation_scheme": "dynamic", **block}

    def part(self, case: str, outputs: int, seed: int) -> StoredPart:
        draw = torch.Generator().manual_seed(seed)
        codes = (torch.randn(outputs, self.in_features, generator=draw) * 40).to(CODES)
        blocks = (outputs // BLOCK, self.in_features // BLOCK)
        shape = {"tensor": (1,), "channel": (outputs, 1), "block": blocks}[case]
        scale = torch.rand(shape, generator=draw) * 0.02
        wide = scale
        if case == "block":
            wide = scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        name = "weight_scale_inv" if case == "block" else "weight_scale"
        tensors = {"weight": ("F8_E4M3", codes), name: ("F32", scale)}
        return StoredPart(tensors, codes.double() * wide.double())
