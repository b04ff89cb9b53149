"""The named ops by their formulas."""

from __future__ import annotations

import math

import pytest
import torch

from pegboard.nn.ops import OPS, add_rms_norm, gelu_tanh_mul, rms_norm, rope, silu_mul, soft_cap


def test_rms_norm_is_its_formula() -> None:
    x, weight = torch.randn(5, 12), torch.randn(12)
    wide = x.double()
    wanted = wide / (wide.square().mean(-1, keepdim=True) + 0.1).sqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 0.1).double(), wanted, rtol=1e-6, atol=1e-6)


def test_rms_norm_of_large_half_precision_values_does_not_overflow() -> None:
    x = torch.full((1, 8), 60000.0, dtype=torch.float16)
    found = rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-6)
    torch.testing.assert_close(found, torch.ones(1, 8, dtype=torch.float16))


def test_add_rms_norm_gives_the_norm_of_the_sum_and_the_sum() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    total = x + residual
    normed, added = add_rms_norm(x.clone(), residual, weight, 1e-5)
    assert torch.equal(added, total)
    assert torch.equal(normed, rms_norm(total, weight, 1e-5))


def test_silu_mul_gates_the_second_half_with_the_first() -> None:
    packed = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    wanted = [3 / (1 + math.exp(-1)), -10 / (1 + math.exp(2))]
    torch.testing.assert_close(silu_mul(packed), torch.tensor([wanted]))


def test_gelu_tanh_mul_gates_the_second_half_with_the_first() -> None:
    def gelu(x: float) -> float:
        return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    packed = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    wanted = [3 * gelu(1.0), 5 * gelu(-2.0)]
    torch.testing.assert_close(gelu_tanh_mul(packed), torch.tensor([wanted]))


def test_a_soft_cap_keeps_small_values_and_bounds_large_ones() -> None:
    found = soft_cap(torch.tensor([0.01, -0.01, 4.0, -1e6, 1e6]), 5.0)
    wanted = [0.01, -0.01, 5 * math.tanh(0.8), -5.0, 5.0]
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=1e-5, atol=1e-6)


def test_rope_turns_each_pair_by_its_angle() -> None:
    angles = torch.tensor([[0.0, 0.0], [0.5, 0.1], [1.0, 0.2]])
    table = torch.cat((angles.cos(), angles.sin()), -1)
    x = torch.randn(2, 3, 4)
    found = rope(x, torch.tensor([2, 1]), table)
    for token, position in enumerate((2, 1)):
        for pair in range(2):
            turn = complex(math.cos(angles[position, pair]), math.sin(angles[position, pair]))
            for head in range(3):
                number = complex(x[token, head, pair], x[token, head, pair + 2]) * turn
                assert found[token, head, pair].item() == pytest.approx(number.real, abs=1e-5)
                assert found[token, head, pair + 2].item() == pytest.approx(number.imag, abs=1e-5)


def test_rope_leaves_features_beyond_its_table_alone() -> None:
    x = torch.randn(2, 3, 6)
    table = torch.tensor([[0.6, 0.8]]).repeat(3, 1)
    found = rope(x, torch.tensor([0, 2]), table)
    assert torch.equal(found[..., 2:], x[..., 2:])
    assert not torch.allclose(found[..., :2], x[..., :2])


def test_ops_take_no_rows() -> None:
    empty, weight = torch.empty(0, 8), torch.ones(8)
    assert rms_norm(empty, weight, 1e-5).shape == (0, 8)
    assert add_rms_norm(empty, empty, weight, 1e-5)[0].shape == (0, 8)
    assert silu_mul(empty).shape == gelu_tanh_mul(empty).shape == (0, 4)
    assert soft_cap(empty, 3.0).shape == (0, 8)
    no_positions = torch.empty(0, dtype=torch.int64)
    assert rope(torch.empty(0, 2, 4), no_positions, torch.ones(3, 4)).shape == (0, 2, 4)


def test_every_op_states_a_tolerance_for_every_compute_dtype() -> None:
    for name, op in OPS.items():
        assert op.name == name
        assert op.tolerance.keys() == {"float32", "bfloat16", "float16"}
