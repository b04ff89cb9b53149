"""Which KV connector an engine uses, and whether it can serve the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pegboard.api.connector import KVConnector, KVTransferConfig
from pegboard.api.kv import KVGroup, KVLayout
from pegboard.errors import SelectionError, UnsupportedError

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["accepted_layouts", "check_layouts", "identity_for", "require_connector"]

_UNCACHED = ("cross", "encoder-only")


def require_connector(
    board: Board, config: KVTransferConfig, groups: Sequence[KVGroup]
) -> KVConnector:
    """The connector that `config` names.

    Raises `MissingPluginError` saying what would provide it, or `UnsupportedError` if it cannot
    serve the model's KV groups.
    """
    name = config.kv_connector
    connector: KVConnector = board.require(
        "connector", name, wanted_by=f"kv_connector={name!r} in kv_transfer_config"
    )
    _check_groups(connector, groups)
    return connector


def identity_for(
    board: Board, identity: Mapping[str, Any], connector: KVConnector
) -> dict[str, Any]:
    """An engine's identity for this connector: what it stores is its own, and its version's."""
    return {**identity, "connector": board.signatures([("connector", connector.name)])}


def _check_groups(connector: KVConnector, groups: Sequence[KVGroup]) -> None:
    kept = [group for group in groups if group.slot_bytes()]
    listed = ", ".join(f"{group.index}: {group.spec.kind}" for group in groups)
    who = f"KV connector {connector.name!r} cannot serve this model"
    if len(kept) > 1 and not connector.abilities.groups:
        raise UnsupportedError(
            f"{who}: it serves models with one KV group, this one has {len(kept)} ({listed})"
        )
    kinds = connector.abilities.kinds
    for group in groups:
        if kinds and group.spec.kind not in kinds:
            raise UnsupportedError(
                f"{who}: KV group {group.index} is of kind {group.spec.kind!r}, it serves "
                f"{', '.join(kinds)}"
            )
        if group.spec.kind in _UNCACHED or getattr(group.spec, "cache", "") == "none":
            raise UnsupportedError(
                f"{who}: KV group {group.index} ({group.spec.kind}) has no content that a request "
                "could begin with"
            )


def accepted_layouts(
    connector: KVConnector, offered: Sequence[KVLayout], where: str
) -> tuple[KVLayout, ...]:
    """Of the layouts that a backend offers for a group, those that the connector can handle.

    `where` names backend and group. Raises `SelectionError` listing both sides if there are none.
    """
    allowed = connector.abilities.layouts
    good = tuple(layout for layout in offered if not allowed or layout.name in allowed)
    if not good:
        raise SelectionError(
            f"no KV layout serves both sides: {where} offers "
            f"{', '.join(layout.name for layout in offered) or 'none'}; KV connector "
            f"{connector.name!r} handles {', '.join(allowed)}"
        )
    return good


def check_layouts(connector: KVConnector, layouts: Sequence[KVLayout]) -> None:
    """Raise `SelectionError` unless the connector can handle the layouts that were decided."""
    for group, layout in enumerate(layouts):
        accepted_layouts(connector, [layout], f"KV group {group}")
