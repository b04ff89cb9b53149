"""`SamplingParams.extra_args`: plain values, checked and copied."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pegboard import SamplingParams
from pegboard.api.extra_args import MAX_DEPTH
from pegboard.errors import RequestError


def nested(depth: int) -> Any:
    return [] if depth == 0 else [nested(depth - 1)]


def test_plain_values_are_copied_and_travel() -> None:
    inner = {"b": [1, 2.5, None, True, "é"]}
    params = SamplingParams(extra_args={"a": inner, "t": (1, 2)})
    inner["b"].append("later")
    assert params.extra_args == {"a": {"b": [1, 2.5, None, True, "é"]}, "t": [1, 2]}
    packed = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(packed, type=SamplingParams).extra_args == params.extra_args


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "a mapping"),
        ({1: 2}, "keys must be texts"),
        ({"a": {"": 2}}, "keys must be texts"),
        ({"a": float("nan")}, "a finite number"),
        ({"a": 2**63}, "64 bits"),
        ({"a": ["\ud800"]}, r"extra_args\['a'\]\[0\].*UTF-8"),
        ({"\ud800": 1}, "UTF-8"),
        ({"a": {"b": object()}}, r"extra_args\['a'\]\['b'\].*None, a truth value"),
        ({"a": nested(MAX_DEPTH)}, f"at most {MAX_DEPTH} lists"),
    ],
)
def test_anything_else_is_refused_by_its_place(given: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        SamplingParams(extra_args=given)
    assert caught.value.field == "extra_args"
