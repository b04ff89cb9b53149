"""Rows without a past read keys and values from the step's inputs, interpreted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionInputs
from pegboard_attention_triton import kernel as module
from pegboard_attention_triton.kernel import TritonKernel
from pegboard_testkit.attention_case import AttentionCase, Setting

Rows = Sequence[tuple[int, int]]


def case_of(rows: Rows, **setting: Any) -> AttentionCase:
    own = {"heads": 2, "kv_heads": 1, "head_size": 64, "dtype": "bfloat16", "kv_dtype": "bfloat16"}
    chosen = Setting(**{**own, **setting})
    case = AttentionCase(TritonKernel, [length for _, length in rows], chosen, fused_kv_write=False)
    case.fill(rows)
    return case


def check(case: AttentionCase, rows: Rows) -> None:
    for found, wanted in zip(case.run(rows), case.expected(rows), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=2e-2, atol=2e-2)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two kernels was launched, each time."""
    seen: list[str] = []
    for name in ("fresh", "prefill"):
        monkeypatch.setattr(module, name, Noting(getattr(module, name), name, seen))
    return seen


@attrs.frozen
class Noting:
    kernel: Any
    name: str
    seen: list[str]

    def __getitem__(self, grid: Any) -> Any:
        self.seen.append(self.name)
        return self.kernel[grid]


def test_rows_with_and_without_a_past_and_single_tokens_mix(launches: list[str]) -> None:
    rows = [(5, 5), (1, 12), (150, 150), (20, 71), (1, 1), (64, 64)]
    check(case_of(rows), rows)
    assert launches == ["fresh", "prefill"]


@pytest.mark.parametrize(
    "setting",
    [
        {"heads": 4, "kv_heads": 2, "head_size": 128},
        {"heads": 3, "kv_heads": 3},
        {"heads": 7, "kv_heads": 1},
        {"soft_cap": 0.8},
    ],
)
def test_heads_and_scores_of_every_kind(launches: list[str], setting: dict[str, Any]) -> None:
    rows = [(9, 9), (135, 135)]
    check(case_of(rows, **setting), rows)
    assert launches == ["fresh"]


@pytest.mark.parametrize(
    "setting",
    [
        {"dtype": "float32", "kv_dtype": "float32"},
        {"dtype": "float32"},
        {"kv_dtype": "float8_e4m3fn"},
        {"head_size": 80},
        {"kind": "sliding", "span": 6},
    ],
)
def test_what_it_does_not_have_is_read_from_pages(
    launches: list[str], setting: dict[str, Any]
) -> None:
    rows = [(9, 9)]
    check(case_of(rows, **setting), rows)
    assert launches == ["prefill"]


def test_a_request_is_not_spoiled_by_the_one_behind_it(launches: list[str]) -> None:
    rows = [(9, 9), (30, 30)]
    case = case_of(rows)
    wanted = case.run(rows)[0]
    for part in (case.keys, case.values):
        part[1].fill_(torch.nan)
    assert torch.equal(case.run(rows)[0], wanted)
    assert launches == ["fresh", "fresh"]


def test_keys_may_be_a_part_of_something_larger(launches: list[str]) -> None:
    rows = [(30, 30)]
    case = case_of(rows)
    wanted = torch.cat(case.run(rows))
    packed = torch.cat((case.queries[0], case.keys[0], case.values[0]), 1)
    inputs = AttentionInputs(*packed.split((2, 1, 1), 1))
    metadata = case.kernel.plan(case.step(rows, [0]))
    assert torch.equal(case.kernel.forward(case.layer, inputs, case.kv, metadata), wanted)
    apart = packed[:, :, ::1].transpose(1, 2).contiguous().transpose(1, 2)
    inputs = AttentionInputs(*apart.split((2, 1, 1), 1))
    assert torch.allclose(case.kernel.forward(case.layer, inputs, case.kv, metadata), wanted)
    assert launches == ["fresh", "fresh", "prefill"]
