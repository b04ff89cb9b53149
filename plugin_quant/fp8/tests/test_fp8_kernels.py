"""The kernels against float64, with bounds that follow from the format."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pegboard_quant_fp8 import codes as plain
from pegboard_quant_fp8 import device as device_module
from pegboard_quant_fp8 import launch
from pegboard_quant_fp8.device import DeviceProducts, round_groups, round_rows
from pegboard_quant_fp8.launch import (
    CodedLaunch,
    FewLaunch,
    OneLaunch,
    coded_launch,
    few_launch,
    one_launch,
)

ROUNDING = 2**-4
"""Of a value, by 3 bits of mantissa; below the smallest normal number, 2^-10 of the scale."""


def coded(outputs: int, inputs: int, device: torch.device, *, block: bool = False) -> Any:
    """Runtime parameters of a random layer."""
    wide = torch.randn(outputs, inputs) * torch.rand(outputs, 1).exp2()
    weight = torch.empty(outputs, inputs, dtype=plain.CODES)
    if not block:
        scale = torch.empty(outputs)
        plain.round_rows(wide, weight, scale)
        params = {"weight": weight, "scale": scale}
    else:
        scale = torch.empty(-(-outputs // 128), -(-inputs // 128))
        plain.round_blocks(wide, weight, scale, (128, 128))
        rows = torch.arange(outputs, dtype=torch.int32) // 128
        params = {"weight": weight, "scale": scale, "block_of_row": rows}
    return {name: value.to(device) for name, value in params.items()}


def made(activations: Any, device: torch.device) -> DeviceProducts:
    products = DeviceProducts(activations)
    products.prepare(device)
    return products


def oracle(params: Any, x: torch.Tensor, group: int = 0) -> torch.Tensor:
    weight = plain.decoded_rows(params, slice(None), group)
    return x.double().cpu() @ weight.double().cpu().T


def activations(rows: int, inputs: int, device: torch.device) -> torch.Tensor:
    """Rows that stand apart; on a GPU in bfloat16, as its units multiply float32 less exactly."""
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return torch.randn(rows, 2 * inputs, dtype=dtype, device=device)[:, :inputs]


def arithmetic(x: torch.Tensor) -> float:
    """Largest error of a product of unrounded activations."""
    return 1e-6 if x.dtype == torch.float32 else 2**-8


def error(y: torch.Tensor, expected: torch.Tensor) -> float:
    return float((y.double().cpu() - expected).norm() / expected.norm())


@pytest.mark.parametrize("inputs", [1, 100, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_rounded_to_the_nearest_code(
    inputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(3, 2 * inputs, dtype=dtype, device=device)[:, :inputs]  # rows stand apart
    codes, scales = round_rows(x)
    wide, back = x.double(), codes.double() * scales.double()
    bound = wide.abs() * ROUNDING + scales.double() * 2**-10
    assert bool(((back - wide).abs() <= bound * (1 + 1e-5)).all())
    assert torch.allclose(scales[:, 0], x.float().abs().amax(1) / 448, rtol=1e-6)


def test_a_row_longer_than_a_program_is_rounded_in_pieces(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 300, device=device)
    whole = round_rows(x)
    given = torch.tensor([0.25], device=device)
    whole_given = round_rows(x, given)
    monkeypatch.setattr(device_module, "_WHOLE", 64)
    for expected, found in ((whole, round_rows(x)), (whole_given, round_rows(x, given))):
        assert torch.equal(expected[0].view(torch.uint8), found[0].view(torch.uint8))
        assert torch.equal(expected[1], found[1])


def test_a_given_scale_is_used_and_what_it_cannot_reach_is_cut_off(device: torch.device) -> None:
    x = torch.tensor([[1.0, -500.0, 1e6, 0.3]], device=device)
    codes, scales = round_rows(x, torch.tensor([1.0], device=device))
    assert scales.tolist() == [[1.0]]
    assert codes.float().tolist() == [[1.0, -448.0, 448.0, 0.3125]]


def test_groups_have_scales_of_their_own(device: torch.device) -> None:
    x = torch.randn(3, 300, device=device) * torch.tensor([1e-3, 1.0, 1e3], device=device)[:, None]
    x[:, 128:256] *= 100
    codes, scales = round_groups(x)
    peaks = torch.stack([part.abs().amax(1) for part in x.split(128, 1)], 1)
    assert torch.allclose(scales, peaks / 448, rtol=1e-6)
    wide = scales.repeat_interleave(128, 1)[:, :300]
    bound = x.abs() * ROUNDING + wide * 2**-10
    assert bool(((codes.float() * wide - x).abs() <= bound * (1 + 1e-5)).all())


def test_zeros_stay_zeros_and_what_is_not_finite_stays_visible(device: torch.device) -> None:
    x = torch.ones(4, 16, device=device)
    x[0] = 0
    x[1, 3], x[2, 3] = float("nan"), float("inf")
    for codes, scales in (round_rows(x), round_groups(x)):
        total = (codes.float() * scales).sum(1)
        assert total[0] == 0 and bool(scales.isfinite()[0])
        assert not total[1:3].isfinite().any()
        assert torch.allclose(total[3], torch.tensor(16.0, device=device), rtol=1e-6)


@pytest.mark.parametrize("rows", [1, 2, 16])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 256), (33, 200), (130, 1030)])
@pytest.mark.parametrize("group", [0, 128])
def test_few_rows_have_exact_weights_and_activations(
    rows: int, outputs: int, inputs: int, group: int, device: torch.device
) -> None:
    params = coded(outputs, inputs, device, block=group > 0)
    x = activations(rows, inputs, device)
    y = made("dynamic", device).product(params, x, group)
    assert (y.dtype, tuple(y.shape)) == (x.dtype, (rows, outputs))
    assert error(y, oracle(params, x, group)) < arithmetic(x)


@pytest.mark.parametrize(
    ("wide", "split", "group"), [(True, 3, 0), (False, 1, 0), (False, 3, 128), (True, 1, 128)]
)
def test_every_way_to_launch_few_rows_gives_the_same(
    wide: bool, split: int, group: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = FewLaunch(tile_n=32, tile_k=64, split=split, wide=wide)
    monkeypatch.setattr(device_module, "few_launch", lambda outputs, inputs: launch)
    params = coded(40, 330, device, block=group > 0)
    x = activations(3, 330, device)
    products = made("dynamic", device)
    first = products.product(params, x, group)
    assert error(first, oracle(params, x, group)) < arithmetic(x)
    assert torch.equal(products.product(params, x, group), first)  # the counters are zero again


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"), [(17, 100, 256), (20, 130, 200), (66, 40, 130)]
)
def test_block_scales_with_many_rows(
    rows: int, outputs: int, inputs: int, device: torch.device
) -> None:
    params = coded(outputs, inputs, device, block=True)
    x = activations(rows, inputs, device)
    y = made("dynamic", device).product(params, x, 128)
    codes, scales = round_groups(x)
    rounded = codes.double() * scales.double().repeat_interleave(128, 1)[:, :inputs]
    bound = max(1e-3, arithmetic(x))  # of the arithmetic, on rounded activations
    assert error(y, oracle(params, rounded, 128)) < bound
    # Rounding errors are independent, so that they do not add up to more than each one's bound.
    assert 1e-3 < error(y, oracle(params, x, 128)) < ROUNDING


WAYS = [
    pytest.param(0, 0, id="scales per row"),
    pytest.param(0, 256, id="scales afterwards"),
    pytest.param(256, 0, id="own kernel"),
]


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize(("coded_rows", "tensor_rows"), WAYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_many_rows_are_multiplied_with_a_scale_per_row_and_output(
    coded_rows: int,
    tensor_rows: int,
    static: bool,
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "CODED_ROWS", coded_rows)
    monkeypatch.setattr(launch, "TENSOR_ROWS", tensor_rows)
    params = coded(48, 64, device)
    x = torch.randn(20, 64, device=device).to(dtype) * torch.arange(1, 21, device=device)[:, None]
    x = x.to(dtype)
    if static:
        params["input_scale"] = (x.abs().amax() / 448).float().reshape(1)
    y = made("static" if static else "dynamic", device).product(params, x, 0)
    codes, scales = round_rows(x, params.get("input_scale"))
    assert y.dtype == dtype
    assert error(y, oracle(params, codes.double() * scales.double())) < 2**-8  # bfloat16 results
    assert 1e-3 < error(y, oracle(params, x)) < ROUNDING


def test_the_borders_between_the_ways_are_kept(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "CODED_ROWS", 18)
    monkeypatch.setattr(launch, "TENSOR_ROWS", 20)
    monkeypatch.setattr(launch, "WIDE_OUTPUTS", 48)
    ways: list[str] = []
    for name in ("_few", "_coded", "_scaled_after"):
        usual = getattr(DeviceProducts, name)

        def watched(*args: Any, name: str = name, usual: Any = usual) -> Any:
            ways.append(name)
            return usual(*args)

        monkeypatch.setattr(DeviceProducts, name, watched)
    params, products = coded(32, 32, device), made("dynamic", device)
    for rows in (16, 17, 18, 19, 20, 21):
        products.product(params, torch.randn(rows, 32, device=device), 0)
    assert ways == ["_few", "_coded", "_coded", "_scaled_after", "_scaled_after"]
    ways.clear()
    wide = coded(48, 32, device)
    for rows in (16, 18, 19, 20):
        products.product(wide, torch.randn(rows, 32, device=device), 0)
    assert ways == ["_few", "_coded"], "wide results are read and written once more"


@pytest.mark.parametrize(("split", "rows"), [(1, 33), (3, 20)])
def test_codes_are_multiplied_in_tiles_that_end_beyond_the_edges(
    split: int, rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "CODED_ROWS", 256)
    cut = CodedLaunch(tile_n=64, tile_k=64, split=split)
    monkeypatch.setattr(device_module, "coded_launch", lambda outputs, inputs, rows: cut)
    params, products = coded(80, 336, device), made("dynamic", device)
    x = torch.randn(rows, 2 * 336, device=device)[:, :336]
    first = products.product(params, x, 0)
    codes, scales = round_rows(x)
    assert error(first, oracle(params, codes.double() * scales.double())) < max(1e-3, arithmetic(x))
    assert torch.equal(products.product(params, x, 0), first)  # the counters are zero again


@pytest.mark.parametrize(
    ("activations", "outputs", "inputs"), [("none", 48, 64), ("dynamic", 50, 70)]
)
def test_without_units_for_it_many_rows_have_exact_activations(
    activations: Any, outputs: int, inputs: int, device: torch.device
) -> None:
    params = coded(outputs, inputs, device)
    x = torch.randn(20, inputs, device=device)
    y = made(activations, device).product(params, x, 0)
    assert error(y, oracle(params, x)) < 1e-6


def test_no_rows_give_no_rows(device: torch.device) -> None:
    products = made("dynamic", device)
    for group in (0, 128):
        params = coded(48, 64, device, block=group > 0)
        assert products.product(params, torch.empty(0, 64, device=device), group).shape == (0, 48)
    assert round_rows(torch.empty(0, 64, device=device))[0].shape == (0, 64)
    assert round_groups(torch.empty(0, 64, device=device))[0].shape == (0, 64)


def test_weights_are_rounded_alike_by_kernel_and_by_torch(device: torch.device) -> None:
    weight = torch.randn(30, 70, device=device)
    codes = torch.empty(30, 70, dtype=plain.CODES, device=device)
    scale = torch.empty(30, device=device)
    DeviceProducts("dynamic").round_rows(weight, codes, scale)
    same, same_scale = torch.empty_like(codes), torch.empty_like(scale)
    plain.round_rows(weight, same, same_scale)
    assert torch.allclose(scale, same_scale, rtol=1e-6)
    differs = (codes.float() - same.float()).abs() > 0
    assert differs.float().mean() < 1e-3  # a last bit of the scale may decide a tie


@pytest.mark.parametrize(
    ("outputs", "inputs", "split"),
    [(28672, 4096, 1), (6144, 4096, 2), (4096, 14336, 4), (512, 4096, 4)],
)
def test_narrow_layers_are_split_along_their_inputs(outputs: int, inputs: int, split: int) -> None:
    assert few_launch(outputs, inputs).split == split
    assert one_launch(outputs, inputs) == OneLaunch()


def test_the_launch_of_coded_rows_follows_rows_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coded_launch(28672, 4096, 32) == CodedLaunch()
    assert coded_launch(4096, 14336, 200) == CodedLaunch(tile_k=128, split=2, stages=5)
    table = {(64, 64): {32: CodedLaunch(tile_n=128), 128: CodedLaunch(tile_n=256)}}
    monkeypatch.setattr(launch, "CODED", table)
    assert [coded_launch(64, 64, rows).tile_n for rows in (17, 32, 33, 129)] == [128, 128, 256, 64]
