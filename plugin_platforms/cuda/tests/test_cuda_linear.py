"""Products with few rows against float64."""

from __future__ import annotations

import shutil

import pytest
import torch

from pegboard.nn import OPS
from pegboard_platform_cuda import ops, tiles
from pegboard_platform_cuda.kernels.linear import product
from pegboard_platform_cuda.tiles import Tile, tile_for

NARROW = [torch.float16]
if shutil.which("nvidia-smi"):  # the interpreter multiplies the bits of bfloat16 matrices
    NARROW.append(torch.bfloat16)


def check(found: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
    plain = OPS["linear"].plain(x, weight)
    wanted = x.double() @ weight.double().T
    assert found.dtype == plain.dtype and found.shape == plain.shape
    tolerance = OPS["linear"].tolerance[str(x.dtype).removeprefix("torch.")]
    assert ((found.double() - wanted).abs() <= tolerance * (1 + wanted.abs())).all()


def operands(
    rows: int, inputs: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(rows, inputs, device=device)
    weight = torch.randn(outputs, inputs, device=device) / inputs**0.5
    return x.to(dtype), weight.to(dtype)


@pytest.mark.parametrize("dtype", [*NARROW, torch.float32])
@pytest.mark.parametrize("rows", [0, 1, 2, 5, 16, 17])
def test_products_agree_for_any_number_of_rows(
    rows: int, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = operands(rows, 200, 75, dtype, device)
    check(ops.linear(x, weight), x, weight)


@pytest.mark.parametrize("dtype", NARROW)
def test_rows_of_a_wider_matrix_are_read_in_place(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = operands(6, 300, 40, dtype, device)
    x, weight = x[::2, 40:240], weight[:, 100:]
    check(ops.linear(x, weight), x, weight)
    check(ops.linear(x[:1], weight), x[:1], weight)
    check(ops.linear(x.T.contiguous().T, weight), x, weight)


def test_one_row_of_bfloat16_agrees(device: torch.device) -> None:
    x, weight = operands(1, 200, 9, torch.bfloat16, device)
    check(ops.linear(x, weight), x, weight)


def test_a_wide_input_of_a_narrow_weight_is_rounded_first(device: torch.device) -> None:
    x, weight = operands(3, 64, 20, torch.bfloat16, device)
    found = ops.linear(x.float(), weight)
    assert found.dtype == torch.float32
    assert torch.equal(found, OPS["linear"].plain(x.float(), weight))


TRIED = [
    Tile("vector", outputs=16, depth=64),
    Tile("vector", outputs=8, depth=512, stages=3),
    Tile("matrix", outputs=16, depth=64, stages=3),
    Tile("matrix", outputs=32, depth=32, splits=3),
    Tile("matrix", outputs=64, depth=128, splits=2),
    Tile("matrix", outputs=64, depth=64, stages=2, swapped=True),
    Tile("library"),
]


@pytest.mark.parametrize("tile", TRIED, ids=str)
def test_every_way_to_cut_gives_the_same_product(tile: Tile, device: torch.device) -> None:
    for inputs in (256, 200):
        rows = 1 if tile.kind == "vector" else 3
        x, weight = operands(rows, inputs, 70, torch.float16, device)
        check(product(x, weight, tile), x, weight)


@pytest.mark.parametrize("rows", [1, 17, 32, 61])
@pytest.mark.parametrize(("inputs", "outputs"), [(256, 128), (200, 70), (64, 9)])
def test_the_copy_engine_brings_no_more_than_there_is(
    rows: int, inputs: int, outputs: int, device: torch.device
) -> None:
    x, weight = operands(rows, inputs, outputs, torch.float16, device)
    around = torch.full((rows + 64, inputs), torch.nan, dtype=x.dtype, device=device)
    around[:rows] = x
    tile = Tile("described", outputs=64, depth=128, stages=3)
    check(product(around[:rows], weight, tile), x, weight)


def test_what_the_copy_engine_cannot_read_is_left_to_the_library(device: torch.device) -> None:
    tile = Tile("described", outputs=64, depth=64)
    for inputs in (100, 128):
        x, weight = operands(20, 2 * inputs, 70, torch.float16, device)
        x, weight = x[:, inputs:], weight[:, :inputs]
        check(product(x, weight, tile), x, weight)
        check(product(x.contiguous(), weight, tile), x, weight)
    x, weight = operands(20, 100, 70, torch.float16, device)
    assert torch.equal(product(x, weight, tile), product(x, weight, Tile("library")))


def test_wide_products_of_some_rows_go_through_the_copy_engine_by_rule() -> None:
    assert tile_for(1536, 8960, 17) == tile_for(1536, 8960, 32)
    assert tile_for(1536, 8960, 32).kind == "described"
    assert tile_for(1536, 8960, 33).kind == tile_for(1536, 512, 17).kind == "library"
    assert tile_for(512, 8960, 17).kind == "library"


def test_more_rows_are_ours_where_the_table_says_so(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = Tile("matrix", outputs=64, depth=64, splits=2, stages=2, swapped=True)
    monkeypatch.setattr(tiles, "TILES", {(200, 70): {33: tile}})
    x, weight = operands(33, 200, 70, torch.bfloat16, device)
    found = ops.linear(x, weight)
    assert torch.equal(found, product(x, weight, tile))
    check(found, x, weight)


def test_the_table_decides_before_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    one, few = Tile("vector", outputs=2), Tile("matrix", outputs=16)
    monkeypatch.setattr(tiles, "TILES", {(8, 9): {1: one, 8: few}})
    assert tile_for(8, 9, 1) == one
    assert tile_for(8, 9, 7) == few
    assert tile_for(8, 9, 12) == tile_for(8, 10, 12) != few
    assert tile_for(8, 9, 17).kind == "library"


def test_every_entry_of_the_table_is_one_that_the_kernels_take() -> None:
    for by_rows in tiles.TILES.values():
        assert list(by_rows) == sorted(by_rows)
        for most, tile in by_rows.items():
            assert tile.kind != "vector" or most == 1
            assert tile.kind != "described" or tile.splits == 1
            assert tile.outputs & (tile.outputs - 1) == 0 == tile.depth & (tile.depth - 1)
