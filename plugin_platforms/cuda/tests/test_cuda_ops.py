"""Norms, activations, rotation and the store into the cache against the plain ops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from pegboard.api.kv import FullAttentionSpec, KVLayout, KVTensors
from pegboard.nn import OPS
from pegboard_platform_cuda import ops

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
"""The interpreter's numpy says so; the result is right."""

DTYPES = ["float32", "bfloat16", "float16"]
LAYOUTS = [
    ("block", "kv", "head", "token", "dim"),
    ("block", "kv", "token", "head", "dim"),
    ("kv", "block", "token", "head", "dim"),
]


def agrees(op: str, found: torch.Tensor, plain: torch.Tensor) -> None:
    tolerance = OPS[op].tolerance[str(plain.dtype).removeprefix("torch.")]
    assert found.dtype == plain.dtype
    assert found.shape == plain.shape
    found, plain = found.double(), plain.double()
    assert ((found - plain).abs() <= tolerance * (1 + plain.abs())).all(), op


def rand(*shape: int, dtype: str, device: torch.device) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 48), (1, 40), (5, 300), (3, 64)])
def test_norms_agree_with_the_plain_ones(
    dtype: str, rows: int, size: int, device: torch.device
) -> None:
    wide = rand(rows, size + 8, dtype=dtype, device=device)
    x, residual = wide[:, 8:], rand(rows, size, dtype=dtype, device=device)
    weight = rand(size, dtype=dtype, device=device)
    found = ops.rms_norm(x, weight, 1e-5)
    agrees("rms_norm", found, OPS["rms_norm"].plain(x, weight, 1e-5))
    kept, wanted = residual.clone(), OPS["add_rms_norm"].plain(x, residual, weight, 1e-5)
    for found, plain in zip(ops.add_rms_norm(x, residual, weight, 1e-5), wanted, strict=True):
        agrees("add_rms_norm", found, plain)
    assert torch.equal(residual, kept)


@pytest.mark.parametrize("axes", [(6, 24), (3, 6, 24), (2, 3, 6, 24)])
def test_heads_of_packed_rows_are_normed_where_they_lie(
    axes: tuple[int, ...], device: torch.device
) -> None:
    x = rand(*axes, dtype="float32", device=device)[..., 1:4, :]
    weight = rand(24, dtype="float32", device=device).bfloat16()
    agrees("rms_norm", ops.rms_norm(x, weight, 1e-6), OPS["rms_norm"].plain(x, weight, 1e-6))


def test_a_transposed_input_of_a_norm_is_read_in_its_order(device: torch.device) -> None:
    x = rand(24, 5, dtype="float32", device=device).T
    weight = rand(24, dtype="float32", device=device)
    agrees("rms_norm", ops.rms_norm(x, weight, 1e-6), OPS["rms_norm"].plain(x, weight, 1e-6))


def test_the_sum_before_a_norm_is_rounded_like_the_plain_one(device: torch.device) -> None:
    x, residual = torch.full((1, 8), 256.0), torch.full((1, 8), 0.9)
    x, residual = x.bfloat16().to(device), residual.bfloat16().to(device)
    weight = torch.ones(8, device=device).bfloat16()
    normed, total = ops.add_rms_norm(x.clone(), residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, torch.ones_like(normed))


@pytest.mark.parametrize("op", ["silu_mul", "gelu_tanh_mul"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0, 64), (1, 2), (3, 74), (2, 3, 2100)])
def test_gated_activations_agree(
    op: str, dtype: str, shape: tuple[int, ...], device: torch.device
) -> None:
    packed = 4 * rand(*shape, dtype=dtype, device=device)
    agrees(op, getattr(ops, op)(packed), OPS[op].plain(packed))


@pytest.mark.parametrize("op", ["silu_mul", "gelu_tanh_mul"])
def test_gated_activations_of_large_gates_stay_finite(op: str, device: torch.device) -> None:
    packed = torch.tensor([[-300.0, -90.0, 90.0, 300.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    agrees(op, getattr(ops, op)(packed), OPS[op].plain(packed))


def table(device: torch.device, rotated: int) -> torch.Tensor:
    angles = torch.rand(50, rotated // 2, device=device) * 6
    return torch.cat((angles.cos(), angles.sin()), -1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("size", "rotated"), [(16, 16), (24, 24), (24, 8), (80, 80)])
def test_rotation_agrees(dtype: str, size: int, rotated: int, device: torch.device) -> None:
    for tokens in (0, 3):
        packed = rand(tokens, 7, size, dtype=dtype, device=device)
        positions = torch.randint(0, 50, (tokens,), device=device)
        lookup = table(device, rotated)
        heads = packed[:, 1:6]
        wanted = OPS["rope"].plain(heads, positions, lookup)
        agrees("rope", ops.rope(heads, positions, lookup), wanted)


def cache(
    axes: tuple[str, ...], kv_heads: int, size: int, dtype: str, device: torch.device
) -> KVTensors:
    spec = FullAttentionSpec(kv_heads, size, dtype)
    layout = KVLayout("some", axes)
    shape = layout.shape(spec, 6, 8)
    padded = torch.full((*shape[:-1], shape[-1] + 2), 9.0, device=device)
    return KVTensors("0.self", 0, spec, layout, padded.to(getattr(torch, dtype))[..., :-2])


def same(kv: KVTensors) -> KVTensors:
    return KVTensors(kv.key, kv.group, kv.spec, kv.layout, kv.data.clone())


@pytest.mark.parametrize("axes", LAYOUTS, ids="-".join)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_keys_and_values_go_where_the_plain_op_puts_them(
    axes: tuple[str, ...], dtype: str, device: torch.device
) -> None:
    found, wanted = (
        cache(axes, 3, 10, dtype, device),
        cache(axes, 3, 10, dtype, device),
    )
    packed = rand(5, 8, 10, dtype="float32", device=device)
    slots = torch.tensor([9, -1, 47, 0, 16], device=device)
    ops.store_kv(packed[:, 2:5], packed[:, 5:], found, slots)
    OPS["store_kv"].plain(packed[:, 2:5], packed[:, 5:], wanted, slots)
    agrees("store_kv", found.data, wanted.data)
    assert torch.equal(found.data == 9.0, wanted.data == 9.0)
    ops.store_kv(packed[:0, 2:5], packed[:0, 5:], found, slots[:0])


def norms_of(kind: str | None, size: int, device: torch.device) -> Any:
    if kind is None:
        return None
    weights = (rand(size, dtype=kind, device=device) for _ in range(2))
    return (*weights, 1e-6)


CASES = [
    *itertools.product(DTYPES, [None, "float32"], [(16, 16), (24, 8), (80, 80)]),
    ("bfloat16", "bfloat16", (24, 24)),
    ("float32", "float16", (24, 8)),
]


@pytest.mark.parametrize(("dtype", "norm", "sizes"), CASES)
def test_the_joined_kernel_agrees_with_its_parts(
    dtype: str, norm: str | None, sizes: tuple[int, int], device: torch.device
) -> None:
    size, rotated = sizes
    axes = LAYOUTS[size % 3]
    pages = [cache(axes, 2, size, dtype, device) for _ in range(2)]
    packed = rand(4, 5 + 2 * 2, size + 8, dtype=dtype, device=device)[..., :size]
    lookup, norms = table(device, rotated), norms_of(norm, size, device)
    positions = torch.tensor([3, 49, 0, 7], device=device)
    slots = torch.tensor([9, -1, 47, 1], device=device)
    found, plain = packed.clone(), packed.clone()
    ops.qk_norm_rope_store(found, 2, norms, positions, lookup, pages[0], slots)
    OPS["qk_norm_rope_store"].plain(plain, 2, norms, positions, lookup, pages[1], slots)
    agrees("qk_norm_rope_store", found, plain)
    agrees("qk_norm_rope_store", pages[0].data, pages[1].data)
    untouched = pages[1].data == 9.0
    assert torch.equal(pages[0].data == 9.0, untouched)


def test_the_joined_kernel_takes_no_tokens_and_strided_ones(device: torch.device) -> None:
    pages = [cache(LAYOUTS[0], 1, 16, "float32", device) for _ in range(2)]
    lookup = table(device, 16)
    wide = rand(3, 4, 40, dtype="float32", device=device)
    positions, slots = (
        torch.tensor([3, 4, 5], device=device),
        torch.tensor([3, 4, 5], device=device),
    )
    plain = wide[..., 8:24].clone()
    OPS["qk_norm_rope_store"].plain(plain, 1, None, positions, lookup, pages[1], slots)
    ops.qk_norm_rope_store(wide[..., 8:24], 1, None, positions, lookup, pages[0], slots)
    agrees("qk_norm_rope_store", wide[..., 8:24], plain)
    agrees("qk_norm_rope_store", pages[0].data, pages[1].data)
    none = slots[:0]
    ops.qk_norm_rope_store(wide[:0, :, :16], 1, None, none, lookup, pages[0], none)


STORED = [0.0, 1.0, -3.3, 17.2, 17.0, 500.0, -1e9, 1e-3, 2.0**-10, float("inf"), float("nan")]
"""Plain ones, ties, some beyond the largest number, and subnormal ones."""


def eight_bit_caches(size: int, device: torch.device) -> list[KVTensors]:
    return [cache(LAYOUTS[size % 3], 2, size, "float8_e4m3fn", device) for _ in range(2)]


@pytest.mark.parametrize("scales", [None, (1.0, 1.0), (0.013, 2.6)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eight_bit_keys_and_values_are_rounded_to_the_bit_as_the_plain_ops_do(
    dtype: str, scales: tuple[float, float] | None, device: torch.device
) -> None:
    of_layer = None if scales is None else tuple(torch.tensor(s, device=device) for s in scales)
    packed = 3 * rand(4, 5 + 2 * 2, 24, dtype=dtype, device=device)
    packed[1, -1, : len(STORED)] = torch.tensor(STORED, device=device).to(packed.dtype)
    slots = torch.tensor([9, 17, -1, 1], device=device)
    found, plain = eight_bit_caches(24, device)
    ops.store_kv(packed[:, 5:7], packed[:, 7:], found, slots, of_layer)
    OPS["store_kv"].plain(packed[:, 5:7], packed[:, 7:], plain, slots, of_layer)
    assert torch.equal(found.data.view(torch.uint8), plain.data.view(torch.uint8))
    assert plain.data.isnan().sum() == 1


@pytest.mark.parametrize(("size", "rotated"), [(16, 16), (24, 8)])
def test_the_joined_kernel_stores_eight_bit_keys_and_values(
    size: int, rotated: int, device: torch.device
) -> None:
    found, plain = eight_bit_caches(size, device)
    packed = rand(4, 5 + 2 * 2, size, dtype="float32", device=device)
    lookup, norms = table(device, rotated), norms_of("float32", size, device)
    positions = torch.tensor([3, 49, 0, 7], device=device)
    slots = torch.tensor([9, -1, 47, 1], device=device)
    scales = tuple(torch.tensor(s, device=device) for s in (0.02, 0.3))
    step = (2, norms, positions, lookup)
    ops.qk_norm_rope_store(packed.clone(), *step, found, slots, scales)
    OPS["qk_norm_rope_store"].plain(packed.clone(), *step, plain, slots, scales)
    agree = found.data.view(torch.uint8) == plain.data.view(torch.uint8)
    assert agree.double().mean() > 0.99, "a product may fall on the other side of a tie"
    torch.testing.assert_close(found.data.float(), plain.data.float(), rtol=0.125, atol=2.0**-9)
    assert (plain.data != 9.0).any()
