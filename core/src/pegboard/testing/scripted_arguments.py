"""What requests may ask of the scripted logits processors. No torch."""

from __future__ import annotations

from typing import Any

from pegboard.api.logits import LogitsRequest
from pegboard.errors import RequestError

__all__ = ["check_gap", "check_parity", "check_sharpness"]


def _fail(key: str, value: Any, allowed: str) -> RequestError:
    return RequestError(
        f"extra_args[{key!r}]={value!r} is not allowed: {allowed}", field="extra_args"
    )


def check_gap(request: LogitsRequest) -> None:
    """An integer of at least 1, if it is given."""
    value = request.arguments.get("scripted_gap", 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise _fail("scripted_gap", value, "an integer of at least 1")


def check_parity(request: LogitsRequest) -> None:
    """0 or 1, if it is given."""
    value = request.arguments.get("scripted_parity", 0)
    if isinstance(value, bool) or value not in (0, 1):
        raise _fail("scripted_parity", value, "0 or 1")


def check_sharpness(request: LogitsRequest) -> None:
    """A positive number, if it is given."""
    value = request.arguments.get("scripted_sharpness", 1.0)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 100:
        raise _fail("scripted_sharpness", value, "a number above 0, at most 100")
