"""The ids that users give to requests."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

from pegboard.errors import RequestError

__all__ = ["check_id", "listed_ids"]


def check_id(given: Any) -> None:
    """Raise `RequestError` for what is no id."""
    if not isinstance(given, str) or not given:
        raise RequestError(
            f"request_id={reprlib.repr(given)} is not allowed: a text that is not empty",
            field="request_id",
        )


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
