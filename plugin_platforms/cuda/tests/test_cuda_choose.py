"""The choice of tokens: against the plain op, and against what the filters promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pegboard.nn import OPS
from pegboard_platform_cuda.kernels import choose as kernels
from pegboard_platform_cuda.ops import choose

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")

plain = OPS["choose"].plain

COLUMNS = {
    "temperature": (torch.float64, 0.0),
    "top_k": (torch.int64, 0),
    "top_p": (torch.float64, 1.0),
    "min_p": (torch.float64, 0.0),
    "seed": (torch.int64, 0),
    "child": (torch.int64, 0),
    "position": (torch.int64, 0),
}


def columns(device: torch.device, count: int, **given: Any) -> list[torch.Tensor]:
    """The columns of `count` rows: a value for all, or a list."""
    made = []
    for name, (dtype, usual) in COLUMNS.items():
        value = given.get(name, usual)
        values = value if isinstance(value, list) else [value] * count
        made.append(torch.tensor(values, dtype=dtype, device=device))
    return made


def check(logits: torch.Tensor, rows: list[torch.Tensor]) -> torch.Tensor:
    ids, status = choose(logits, *rows)
    wanted, wanted_status = plain(logits, *rows)
    assert ids.dtype == torch.int64 and status.dtype == torch.int8
    assert status.tolist() == wanted_status.tolist()
    good = status == 0
    assert ids[good].tolist() == wanted[good].tolist()
    assert ((ids >= 0) & (ids < logits.shape[1])).all()
    return ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab", [1, 7, 1024, 2500])
def test_greedy_rows_take_the_likeliest_token(
    dtype: torch.dtype, vocab: int, device: torch.device
) -> None:
    logits = torch.randn(3, vocab, device=device).to(dtype)
    check(logits, columns(device, 3))


def test_the_lowest_id_among_equals_wins_within_and_across_splits(device: torch.device) -> None:
    logits = torch.zeros(3, 2500, device=device)
    logits[0, [700, 701]] = 1.0
    logits[1, [1020, 1030, 2400]] = 1.0
    assert check(logits, columns(device, 3)).tolist() == [700, 1020, 0]


def test_no_rows_give_no_ids(device: torch.device) -> None:
    ids, status = choose(torch.zeros(0, 9, device=device), *columns(device, 0))
    assert ids.shape == status.shape == (0,)


def test_rows_of_a_wider_matrix_and_of_a_transposed_one_are_read(device: torch.device) -> None:
    wide = torch.randn(4, 60, device=device)
    check(wide[::2, 3:53], columns(device, 2, temperature=[0.0, 1.0]))
    check(torch.randn(40, 3, device=device).T, columns(device, 3, temperature=[0.0, 1.0, 0.5]))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_rows_without_a_finite_peak_have_a_status_and_some_id(
    temperature: float, device: torch.device
) -> None:
    logits = torch.randn(5, 1500, device=device)
    logits[0] = -torch.inf
    logits[1, 3] = torch.inf
    logits[2, 1400] = torch.nan
    logits[3] = torch.nan
    logits[4, :1400] = -torch.inf
    rows = columns(device, 5, temperature=temperature, top_k=5, top_p=0.9)
    ids, status = choose(logits, *rows)
    assert status.tolist() == [1, 1, 1, 1, 0]
    assert ((ids >= 0) & (ids < 1500)).all()
    assert ids[4] >= 1400


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1e-12},
    {"temperature": 30.0},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 1},
    {"top_k": 30},
    {"top_k": 5000},
    {"top_p": 0.9},
    {"top_p": 0.05},
    {"top_p": 0.999999},
    {"min_p": 0.02, "top_k": 12, "top_p": 0.8},
    {"min_p": 0.5, "top_k": 1000},
    {"top_k": 200, "top_p": 0.6, "temperature": 0.4},
]


@pytest.mark.parametrize("given", FILTERS, ids=str)
def test_draws_are_those_of_the_plain_op(given: dict[str, Any], device: torch.device) -> None:
    logits = 3 * torch.randn(2, 1100, device=device)
    rows = {"temperature": 1.0, "seed": [4, 7], "position": 5, **given}
    check(logits, columns(device, 2, **rows))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_all_kinds_stand_side_by_side_in_narrow_types(
    dtype: torch.dtype, device: torch.device
) -> None:
    logits = (2 * torch.randn(6, 1500, device=device)).to(dtype)
    rows = columns(
        device,
        6,
        temperature=[0.0, 1.0, 0.6, 1.0, 2.0, 0.0],
        top_k=[3, 0, 20, 0, 1500, 0],
        top_p=[1.0, 1.0, 0.95, 0.5, 0.9, 0.1],
        min_p=[0.0, 0.0, 0.0, 0.1, 0.0, 0.5],
        seed=[1, -1, 2**62, 3, -(2**63), 5],
        child=[0, 3, 2, 1, 0, 0],
        position=[0, 2**31, 17, 5, 6, 7],
    )
    check(logits, rows)


def test_ties_at_a_threshold_are_kept(device: torch.device) -> None:
    logits = torch.full((4, 300), -5.0, device=device).bfloat16()
    logits[:, [10, 100, 200, 299]] = 2.0
    for given in ({"top_k": 2}, {"top_p": 0.3}):
        rows = columns(device, 4, temperature=1.0, seed=[1, 2, 3, 12], **given)
        drawn = set(check(logits, rows).tolist())
        assert drawn <= {10, 100, 200, 299} and len(drawn) > 2


def test_equal_logits_are_drawn_evenly_whatever_the_filters(device: torch.device) -> None:
    logits = torch.zeros(2, 1300, device=device).bfloat16()
    rows = columns(device, 2, temperature=1.0, top_k=3, top_p=0.1, seed=[0, 1])
    ids = check(logits, rows)
    assert len(set(ids.tolist())) == 2


def test_excluded_tokens_are_never_drawn(device: torch.device) -> None:
    logits = torch.full((2, 1100), -torch.inf, device=device).bfloat16()
    logits[:, [5, 1050]] = torch.tensor([0.0, -0.5], device=device).bfloat16()
    for given in ({}, {"top_k": 50}, {"top_p": 0.99}):
        rows = columns(device, 2, temperature=1.0, seed=[0, 1], **given)
        assert set(check(logits, rows).tolist()) == {5, 1050}


def test_a_row_does_not_depend_on_its_mates(device: torch.device) -> None:
    logits = torch.randn(3, 1100, device=device).bfloat16()
    rows = columns(device, 3, temperature=[1.0, 0.0, 0.5], top_p=[1.0, 1.0, 0.8], seed=3)
    together, _ = choose(logits, *rows)
    for row in range(3):
        alone, _ = choose(logits[row : row + 1], *(column[row : row + 1] for column in rows))
        assert alone[0] == together[row]


def test_a_vocabulary_of_any_size_fits_the_splits() -> None:
    for vocab in (1, 1024, 65536, 65537, 151936, 262144, 1 << 20):
        split = max(
            kernels.triton.next_power_of_2(-(-vocab // kernels._SPLITS)), kernels._LEAST_SPLIT
        )
        assert -(-vocab // split) <= kernels._SPLITS
