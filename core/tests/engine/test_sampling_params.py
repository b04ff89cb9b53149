"""Sampling parameters refuse bad values with the field and what is allowed."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from pegboard import SamplingParams
from pegboard.errors import RequestError

BAD: list[tuple[str, Any]] = [
    ("n", 0),
    ("n", 1.0),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", "1"),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_k", -2),
    ("top_k", True),
    ("min_p", 1.5),
    ("repetition_penalty", 0.0),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -2.5),
    ("seed", 2**63),
    ("seed", "a"),
    ("max_tokens", -1),
    ("max_tokens", 0),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("n", 2**31),
    ("top_k", 10**20),
    ("min_tokens", 10**20),
    ("max_tokens", 2**31),
    ("temperature", 10**400),
    ("logprobs", 21),
    ("logprobs", -2),
    ("prompt_logprobs", 1.0),
    ("stop", ""),
    ("stop", ["", "x"]),
    ("stop", 3),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("allowed_token_ids", []),
    ("logit_bias", {"5": 1.0}),
    ("logit_bias", {-1: 1.0}),
    ("logit_bias", {5: float("inf")}),
    ("logit_bias", [5]),
    ("ignore_eos", 1),
    ("n", 16385),
    ("n", np.bool_(True)),
    ("top_k", np.float32(3.0)),
    ("temperature", 1e300),
    ("temperature", np.float32("nan")),
    ("repetition_penalty", 1e-320),
    ("repetition_penalty", 1e300),
    ("stop", ["x"] * 257),
    ("stop", "x" * 16385),
    ("stop_token_ids", [np.int64(-1)]),
    ("stop_token_ids", [True]),
    ("stop_token_ids", b"ab"),
    ("logit_bias", {5: "1"}),
    ("logit_bias", {True: 1.0}),
    ("skip_special_tokens", None),
]


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_bad_value_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=field) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "good",
    [
        {},
        {"temperature": 0},
        {"top_k": -1},
        {"stop": None},
        {"stop": []},
        {"stop": "x"},
        {"stop": ["x", "y"]},
        {"max_tokens": None, "min_tokens": 100},
        {"max_tokens": 0, "prompt_logprobs": 0},
        {"logprobs": -1},
        {"logit_bias": {5: 1000.0}},
        {"seed": -(2**63)},
        {"n": 16384},
        {"stop": ["x"] * 256},
        {"stop": "x" * 16384},
        {"repetition_penalty": 1e-4},
        {"temperature": 10_000},
    ],
)
def test_a_good_value_is_kept(good: dict[str, Any]) -> None:
    params = SamplingParams(**good)
    assert {name: getattr(params, name) for name in good} == good


def test_o07_no_stop_strings_means_none() -> None:
    assert SamplingParams(stop=[]).stop_strings == SamplingParams(stop=None).stop_strings == ()


def test_several_greedy_sequences_are_refused() -> None:
    with pytest.raises(RequestError, match="n=2"):
        SamplingParams(n=2, temperature=0)


def test_stop_strings_need_text() -> None:
    with pytest.raises(RequestError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_o08_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="at most max_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)  # type: ignore[call-arg]


def test_what_was_checked_cannot_be_changed_through_the_callers_lists() -> None:
    ids, bias, stop = [3], {5: 1.0}, ["x"]
    params = SamplingParams(stop_token_ids=ids, allowed_token_ids=ids, logit_bias=bias, stop=stop)
    ids.append(-1)
    bias[-1] = 0.0
    stop.append("")
    assert (params.stop_token_ids, params.allowed_token_ids) == ([3], [3])
    assert (params.logit_bias, params.stop) == ({5: 1.0}, ["x"])


def test_numbers_of_other_libraries_are_kept_as_pythons() -> None:
    params = SamplingParams(
        n=np.int64(2),
        temperature=np.float32(0.5),
        top_k=np.uint8(3),
        top_p=np.float64(0.5),
        seed=np.int32(-4),
        max_tokens=np.int16(9),
        stop_token_ids=[np.int64(7)],
        allowed_token_ids=(np.int64(8), 9),
        logit_bias={np.int64(5): np.float32(1.5)},
    )
    plain = SamplingParams(
        n=2,
        temperature=0.5,
        top_k=3,
        top_p=0.5,
        seed=-4,
        max_tokens=9,
        stop_token_ids=[7],
        allowed_token_ids=[8, 9],
        logit_bias={5: 1.5},
    )
    assert params == plain
    assert msgspec.json.encode(params) == msgspec.json.encode(plain)


def test_a_long_bad_value_does_not_fill_the_screen() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(stop=["x"] * 255 + [""])
    assert len(str(caught.value)) < 200
