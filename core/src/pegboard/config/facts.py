"""The facts that a family states, looked at before anything is reckoned with them."""

from __future__ import annotations

import numbers
from collections.abc import Iterator
from typing import Any

import attrs

from pegboard.api.kv import KVSlot
from pegboard.api.model import ModelFacts
from pegboard.errors import PluginError

__all__ = ["check_facts"]

_WHOLE = {"int": "an integer", "int | None": "an integer or None"}
"""By the annotation of a field."""


def check_facts(family: str, facts: Any) -> None:
    """Raise `PluginError` naming the family and the fact if one is of a wrong type."""
    if not isinstance(facts, ModelFacts):
        raise _wrong(family, "facts", facts, "ModelFacts")
    for name, value, allowed in _problems(facts):
        raise _wrong(family, name, value, allowed)


def _wrong(family: str, name: str, value: object, allowed: str) -> PluginError:
    return PluginError(f"family {family!r}: {name}={value!r} is not allowed: {allowed}")


def _problems(facts: Any) -> Iterator[tuple[str, Any, str]]:
    """Name, value and what is allowed, of each fact that is wrong."""
    yield from _not_whole("", facts)
    ids = facts.eos_token_ids
    if not isinstance(ids, (tuple, list)) or not all(map(_is_whole, ids)):
        yield "eos_token_ids", ids, "a tuple of integers"
    if not isinstance(facts.stored_dtype, str):
        yield "stored_dtype", facts.stored_dtype, "the name of a dtype"
    if not isinstance(facts.kv_slots, (tuple, list)):
        yield "kv_slots", facts.kv_slots, "a tuple of KVSlot"
        return
    for place, slot in enumerate(facts.kv_slots):
        if not isinstance(slot, KVSlot):
            yield f"kv_slots[{place}]", slot, "a KVSlot"
        elif slot.spec is not None:
            yield from _not_whole(f"kv_slots[{place}].spec.", slot.spec)


def _not_whole(lead: str, holder: Any) -> Iterator[tuple[str, Any, str]]:
    for field in attrs.fields(type(holder)):
        value, allowed = getattr(holder, field.name), _WHOLE.get(str(field.type))
        absent = value is None and "None" in str(field.type)
        if allowed is not None and not absent and not _is_whole(value):
            yield lead + field.name, value, allowed


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
