"""Dequantised values are those of the format, bit for bit; the reference is the `gguf` package."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGML_QUANT_SIZES

from pegboard.errors import UnsupportedError
from pegboard_quant_gguf import pegboard_quant_formats
from pegboard_quant_gguf.dequant import DEQUANTISERS, dequantise_rows
from pegboard_quant_gguf.testing import quantise_rows
from pegboard_quant_gguf.types import TYPES, TYPES_BY_NAME


def finite_halves() -> torch.Tensor:
    """Every finite half-precision number, as bytes ``[63488, 2]``."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    halves = bits.view(torch.float16)
    return halves[halves.isfinite()].unsqueeze(1).view(torch.uint8)


def random_rows(stored_type: str, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of random codes in whose blocks every finite scale (and minimum) occurs."""
    kind = TYPES_BY_NAME[stored_type]
    scales = finite_halves()
    rows = -(-len(scales) // (columns // kind.block_size))
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(
        0, 256, (rows, kind.row_bytes(columns)), dtype=torch.uint8, generator=generator
    )
    blocks = raw.view(-1, kind.block_bytes)
    blocks[:, :2] = scales.repeat(2, 1)[: len(blocks)]
    if stored_type == "Q4_1":
        blocks[:, 2:4] = scales.flip(0).repeat(2, 1)[7 : 7 + len(blocks)]
    return raw


@pytest.mark.parametrize("stored_type", list(DEQUANTISERS))
@pytest.mark.parametrize("columns", [32, 576])
def test_blocks_give_the_values_of_the_reference_bit_for_bit(
    stored_type: str, columns: int
) -> None:
    raw = random_rows(stored_type, columns)
    expected = gguf.quants.dequantize(raw.numpy(), getattr(gguf.GGMLQuantizationType, stored_type))
    actual = dequantise_rows(raw, stored_type)
    assert actual.shape == expected.shape
    assert np.array_equal(actual.numpy().view(np.uint32), expected.view(np.uint32))


def test_plain_types_are_widened() -> None:
    value = torch.randn(3, 5)
    assert torch.equal(dequantise_rows(value.bfloat16(), "BF16"), value.bfloat16().float())


def test_a_type_without_function_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="Q6_K is not supported by this version"):
        dequantise_rows(torch.zeros(1, 210, dtype=torch.uint8), "Q6_K")


def test_every_type_that_is_declared_has_a_function() -> None:
    (declared,) = pegboard_quant_formats()
    assert set(declared.stored_types) == set(DEQUANTISERS)


def test_the_table_of_types_is_the_published_one() -> None:
    published = {kind.value: (kind.name, *size) for kind, size in GGML_QUANT_SIZES.items()}
    ours = {kind.type_id: (kind.name, kind.block_size, kind.block_bytes) for kind in TYPES.values()}
    assert {key: ours[key] for key in published if key in ours} == {
        key: value for key, value in published.items() if key in ours
    }
    assert published.keys() - ours.keys() == set()


@pytest.mark.parametrize(
    ("stored_type", "tolerance"), [("Q8_0", 0.01), ("Q4_0", 0.15), ("Q4_1", 0.1)]
)
def test_the_quantisers_of_the_tests_come_close(stored_type: str, tolerance: float) -> None:
    value = torch.randn(8, 64, generator=torch.Generator().manual_seed(1))
    error = dequantise_rows(quantise_rows(value, stored_type), stored_type) - value
    assert error.norm() / value.norm() < tolerance
