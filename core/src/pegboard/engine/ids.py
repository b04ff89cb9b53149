"""What users give with a request: its id, a deadline, headers of a trace."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Iterable, Mapping
from typing import Any

from pegboard.errors import RequestError

__all__ = ["check_deadline", "check_id", "checked_headers", "listed_ids"]

TRACE_HEADERS = ("traceparent", "tracestate")
"""Of W3C Trace Context."""


def check_id(given: Any) -> None:
    """Raise `RequestError` for what is no id."""
    if not isinstance(given, str) or not given:
        raise RequestError(
            f"request_id={reprlib.repr(given)} is not allowed: a text that is not empty",
            field="request_id",
        )


def check_deadline(given: Any) -> None:
    """Raise `RequestError` for what is no time, in seconds, and not None."""
    if given is None:
        return
    good = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not good or not math.isfinite(given) or given <= 0:
        raise RequestError(
            f"deadline={given!r} is not allowed: seconds, above 0, or None", field="deadline"
        )


def checked_headers(given: Any) -> dict[str, str]:
    """Those of `TRACE_HEADERS` that are there, by small names; `RequestError` for what is no
    mapping of texts, or None."""
    if given is None:
        return {}
    good = isinstance(given, Mapping) and all(
        isinstance(text, str) for pair in given.items() for text in pair
    )
    if not good:
        raise RequestError(
            f"trace_headers={reprlib.repr(given)} is not allowed: a mapping of texts, or None",
            field="trace_headers",
        )
    small = {name.lower(): value for name, value in given.items()}
    return {name: small[name] for name in TRACE_HEADERS if name in small}


def listed_ids(given: Any) -> list[str]:
    """Ids of one request or several; `RequestError` for what is no id."""
    ids = [given] if isinstance(given, str) else given
    ids = list(ids) if isinstance(ids, Iterable) else [ids]
    for item in ids:
        if not isinstance(item, str):
            raise RequestError(
                f"request_ids={reprlib.repr(given)} is not allowed: a request id, which is a text, "
                "or several",
                field="request_ids",
            )
    return ids
