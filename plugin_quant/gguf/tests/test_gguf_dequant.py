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
from pegboard_quant_gguf.unpack import LAYOUTS, unpack

HALVES = {
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where blocks hold half-precision numbers, if not only at the start."""


def finite_halves() -> torch.Tensor:
    """Every finite half-precision number, as bytes ``[63488, 2]``."""
    bits = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    halves = bits.view(torch.float16)
    return halves[halves.isfinite()].unsqueeze(1).view(torch.uint8)


def random_rows(stored_type: str, columns: int, seed: int = 0) -> torch.Tensor:
    """Rows of random codes in whose blocks every finite scale (and minimum) occurs; in large
    blocks, one in 16 of them."""
    kind = TYPES_BY_NAME[stored_type]
    scales = finite_halves()[:: 16 if kind.block_size > 32 else 1]
    rows = -(-len(scales) // (columns // kind.block_size))
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(
        0, 256, (rows, kind.row_bytes(columns)), dtype=torch.uint8, generator=generator
    )
    blocks = raw.view(-1, kind.block_bytes)
    for number, start in enumerate(HALVES.get(stored_type, (0,))):
        chosen = scales.flip(0) if number else scales
        blocks[:, start : start + 2] = chosen.repeat(2, 1)[7 * number :][: len(blocks)]
    return raw


@pytest.mark.parametrize("stored_type", list(DEQUANTISERS))
@pytest.mark.parametrize("blocks", [1, 18])
def test_blocks_give_the_values_of_the_reference_bit_for_bit(stored_type: str, blocks: int) -> None:
    raw = random_rows(stored_type, blocks * TYPES_BY_NAME[stored_type].block_size)
    expected = gguf.quants.dequantize(raw.numpy(), getattr(gguf.GGMLQuantizationType, stored_type))
    actual = dequantise_rows(raw, stored_type)
    assert actual.shape == expected.shape
    assert np.array_equal(actual.numpy().view(np.uint32), expected.view(np.uint32))


def test_plain_types_are_widened() -> None:
    value = torch.randn(3, 5)
    assert torch.equal(dequantise_rows(value.bfloat16(), "BF16"), value.bfloat16().float())


def test_a_type_without_function_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="TQ1_0 is not supported by this version"):
        dequantise_rows(torch.zeros(1, 54, dtype=torch.uint8), "TQ1_0")


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


TOLERANCES = {
    "Q8_0": 0.01,
    "Q4_0": 0.15,
    "Q4_1": 0.1,
    "Q5_0": 0.07,
    "Q5_1": 0.05,
    "Q2_K": 0.4,
    "Q3_K": 0.25,
    "Q4_K": 0.1,
    "Q5_K": 0.05,
    "Q6_K": 0.03,
    "IQ4_NL": 0.12,
    "IQ4_XS": 0.12,
}


@pytest.mark.parametrize("stored_type", list(DEQUANTISERS))
def test_the_quantisers_of_the_tests_come_close(stored_type: str) -> None:
    value = torch.randn(8, 512, generator=torch.Generator().manual_seed(1))
    error = dequantise_rows(quantise_rows(value, stored_type), stored_type) - value
    assert error.norm() / value.norm() < TOLERANCES[stored_type]


@pytest.mark.parametrize("stored_type", list(DEQUANTISERS))
def test_zeros_stay_zeros(stored_type: str) -> None:
    raw = quantise_rows(torch.zeros(2, 256), stored_type)
    assert torch.equal(dequantise_rows(raw, stored_type), torch.zeros(2, 256))


@pytest.mark.parametrize("stored_type", list(LAYOUTS))
def test_tiles_hold_the_same_values_as_rows(stored_type: str) -> None:
    """Transposed blocks, a slice of them, with and without memory to work in."""
    kind = TYPES_BY_NAME[stored_type]
    raw = random_rows(stored_type, 2 * kind.block_size)[:300]
    blocks = raw.view(300, 2, -1).permute(1, 2, 0)[:, :, 50:250]
    for scratch in (None, torch.full((2 * 400 * kind.block_size + 5,), 255, dtype=torch.uint8)):
        out = torch.empty(2, kind.block_size, 200)
        unpack(stored_type, blocks, out, scratch)
        values = out.permute(2, 0, 1).flatten(1)
        assert torch.equal(values, dequantise_rows(raw, stored_type)[50:250])
