"""Which plugins are installed, which are loaded, and which one engine uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pegboard.plugins.record import PluginRecord
from pegboard.plugins.registry import Provenance

if TYPE_CHECKING:
    from pegboard.plugins.board import Board

__all__ = ["Used", "plugin_report", "provided"]

Used = Mapping[str, Sequence[str]]
"""Names that an engine uses by surface."""


def plugin_report(board: Board, used: Used | None = None) -> list[dict[str, Any]]:
    """One row of plain values for the core and for each plugin found.

    ``installed`` is its version, ``loaded`` whether it is on the board, ``used`` what the engine
    uses of it, as ``"surface:name"``; None where `used` is, for then there is no engine.
    """
    rows = []
    by_source = None if used is None else _by_source(board, used)
    for record in (board.core, *board.plugins):
        things = None if by_source is None else by_source.get(_source(record), [])
        rows.append(
            {
                "id": record.id,
                "distribution": record.distribution,
                "group": record.group,
                "state": record.state,
                "reason": record.reason,
                "installed": record.version,
                "loaded": record.state in ("ready", "shadowed"),
                "used": things,
            }
        )
    return rows


def provided(board: Board, surface: str, names: Sequence[str]) -> str:
    """Names with who provides them, for people: ``"a, b (some-distribution 1.0), c (…)"``."""
    registry = board.registry(surface)
    groups: dict[str, list[str]] = {}
    for name in names:
        who = str(registry.provenance(name)) if name in registry else _unregistered(board, name)
        groups.setdefault(who, []).append(name)
    return ", ".join(f"{', '.join(names)} ({who})" for who, names in groups.items())


def _unregistered(board: Board, name: str) -> str:
    """What is named by module path comes from there; the rest is the core's."""
    return "by module path" if ":" in name else f"{board.core.distribution} {board.core.version}"


def _by_source(board: Board, used: Used) -> dict[tuple[str, str, str], list[str]]:
    found: dict[tuple[str, str, str], list[str]] = {}
    for surface, names in used.items():
        registry = board.registry(surface)
        for name in names:
            if name in registry:
                source = _key(registry.provenance(name))
            elif ":" in name:
                continue
            else:
                source = _source(board.core)
            found.setdefault(source, []).append(f"{surface}:{name}")
    return found


def _key(source: Provenance) -> tuple[str, str, str]:
    return (source.group, source.entry_point, source.distribution)


def _source(record: PluginRecord) -> tuple[str, str, str]:
    return (record.group, record.id, record.distribution)
