"""From the bytes of a body to a checked struct."""

from __future__ import annotations

import logging
import re
from typing import Any, TypeVar

import msgspec

from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.refused_fields import objection

__all__ = ["MAX_DEPTH", "read_body"]

MAX_DEPTH = 96
"""Most levels of lists and objects in a body."""

_LOG = logging.getLogger("pegboard.plugin.server-openai")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")

_COMPARED = 16
"""Unknown fields of one body that are looked through for slips."""

T = TypeVar("T", bound=msgspec.Struct)


def read_body(raw: bytes, kind: type[T]) -> T:
    """The body as `kind`. Raises `HttpError` 400 that names the field."""
    value = _decode(raw)
    if not isinstance(value, dict):
        raise HttpError(400, "the body must be a JSON object")
    _check_unknown(value, kind)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _invalid(error) from None


def _decode(raw: bytes) -> Any:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(400, f"the body is not valid JSON: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if raw.count(b"[") + raw.count(b"{") > MAX_DEPTH:  # else it cannot be too deep
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for parent in level
            for item in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> HttpError:
    return HttpError(400, f"the body is nested more than {MAX_DEPTH} levels deep")


def _check_unknown(value: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    known = kind.__struct_fields__
    for place, name in enumerate(sorted(value.keys() - set(known))):
        why = objection(name, value[name], known, compare=place < _COMPARED)
        if why is not None:
            raise HttpError(400, why, param=name)
        _LOG.debug("unknown field %r of %s is ignored", name, kind.__name__)


def _invalid(error: msgspec.ValidationError) -> HttpError:
    text = str(error)
    place = _PLACE.search(text)
    missing = re.search(r"missing required field `(\w+)`", text)
    where = place[1] if place else missing[1] if missing else ""
    message = _PLACE.sub("", text)
    param = re.split(r"[.\[]", where, maxsplit=1)[0] or None
    return HttpError(400, f"{where}: {message}" if where else message, param=param)
