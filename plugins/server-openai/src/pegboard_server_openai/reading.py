"""From the bytes of a body to a checked struct."""

from __future__ import annotations

import logging
import re
from typing import Any, TypeVar

import msgspec

from pegboard_server_openai.faults import HttpError

__all__ = ["MAX_DEPTH", "read_body"]

MAX_DEPTH = 96
"""Most levels of lists and objects in a body."""

_LOG = logging.getLogger("pegboard.plugin.server-openai")
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")

_REFUSED = {
    "audio": "this server writes text",
    "bad_words": "use logit_bias or allowed_token_ids",
    "function_call": "no plugin for tool calls is installed",
    "functions": "no plugin for tool calls is installed",
    "guided_choice": "no plugin for structured outputs is installed",
    "guided_grammar": "no plugin for structured outputs is installed",
    "guided_json": "no plugin for structured outputs is installed",
    "guided_regex": "no plugin for structured outputs is installed",
    "length_penalty": "there is no beam search",
    "mm_processor_kwargs": "this server reads text",
    "modalities": "this server writes text",
    "prediction": "there are no predicted outputs",
    "prompt_embeds": "prompts are texts or token ids",
    "structured_outputs": "no plugin for structured outputs is installed",
    "truncate_prompt_tokens": "prompts are never cut",
    "use_beam_search": "there is no beam search",
    "web_search_options": "this server does not search",
}
"""Fields that would change the answer and are not served: why. Null, false and empty ones pass."""

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
    for name in value.keys() - set(kind.__struct_fields__):
        why = _REFUSED.get(name)
        if why is not None and value[name]:
            raise HttpError(400, f"{name} is not supported: {why}; leave it out", param=name)
        _LOG.debug("unknown field %r of %s is ignored", name, kind.__name__)


def _invalid(error: msgspec.ValidationError) -> HttpError:
    text = str(error)
    place = _PLACE.search(text)
    missing = re.search(r"missing required field `(\w+)`", text)
    where = place[1] if place else missing[1] if missing else ""
    message = _PLACE.sub("", text)
    param = re.split(r"[.\[]", where, maxsplit=1)[0] or None
    return HttpError(400, f"{where}: {message}" if where else message, param=param)
