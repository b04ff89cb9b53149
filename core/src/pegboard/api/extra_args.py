"""What a request may say to plugins: plain values, which any process can be told."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

from pegboard.errors import RequestError

__all__ = ["plain_arguments"]

MAX_DEPTH = 16
"""Most lists and mappings within each other."""


def plain_arguments(given: Any) -> dict[str, Any]:
    """A copy of `extra_args`, made of Python's own types; raises `RequestError`."""
    if not isinstance(given, Mapping):
        raise _fail(
            "extra_args", given, "a mapping from a logits processor's argument to its value"
        )
    return {_key("extra_args", key): _plain(f"extra_args[{key!r}]", given[key], 1) for key in given}


def _plain(place: str, value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _integer(place, value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _fail(place, value, "a finite number")
        return float(value)
    if isinstance(value, str):
        return _text(place, value)
    if depth == MAX_DEPTH:
        raise _fail(place, value, f"at most {MAX_DEPTH} lists and mappings within each other")
    if isinstance(value, (list, tuple)):
        return [_plain(f"{place}[{i}]", item, depth + 1) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(place, k): _plain(f"{place}[{k!r}]", v, depth + 1) for k, v in value.items()}
    allowed = "None, a truth value, a number, a text, or a list or mapping of these"
    raise _fail(place, value, allowed)


def _integer(place: str, value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise _fail(place, value, "an integer of 64 bits")
    return int(value)


def _text(place: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _fail(place, value, "text that UTF-8 can hold") from None
    return str(value)


def _key(place: str, key: Any) -> str:
    if not isinstance(key, str) or not key:
        raise _fail(place, key, "keys must be texts of at least one character")
    return _text(place, key)


def _fail(place: str, value: Any, allowed: str) -> RequestError:
    return RequestError(
        f"{place}={reprlib.repr(value)} is not allowed: {allowed}", field="extra_args"
    )
