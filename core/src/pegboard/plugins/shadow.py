"""What an override does to the records of those that it overrides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from pegboard.plugins.record import PluginRecord
from pegboard.plugins.registry import Registry, Shadow

__all__ = ["shadowed"]


def shadowed(record: PluginRecord, registries: Mapping[str, Registry[Any]]) -> PluginRecord:
    """The record, in the state ``shadowed`` where nothing that it registered is left, else with a
    note for each thing that another plugin overrides."""
    shadows = [s for r in registries.values() for s in r.shadows() if s.hides(record)]
    if not shadows:
        return record
    texts = tuple(_text(shadow) for shadow in shadows)
    gone = {(s.surface, s.name) for s in shadows if s.whole}
    if record.state == "ready" and gone >= {(r.surface, r.name) for r in record.registered}:
        return attrs.evolve(record, state="shadowed", reason="; ".join(texts))
    return attrs.evolve(record, notes=(*record.notes, *texts))


def _text(shadow: Shadow) -> str:
    keys = ", ".join(map(repr, shadow.keys))
    rest = " as a whole" if shadow.whole else ""
    return f"its {shadow.surface} {shadow.name!r} is overridden{rest} by {shadow.by} ({keys})"
