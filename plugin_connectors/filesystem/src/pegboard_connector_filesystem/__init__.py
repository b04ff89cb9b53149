"""Keys and values kept in files, for Pegboard."""

from __future__ import annotations

from pegboard.api.connector import ConnectorAbilities, KVConnector
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"connector": 0}


@hookimpl
def pegboard_connectors() -> tuple[KVConnector, ...]:
    """The connector ``filesystem``: blocks of all groups, states included, in any layout."""
    return (
        KVConnector(
            name="filesystem",
            scheduler="pegboard_connector_filesystem.scheduler:FilesystemScheduler",
            worker="pegboard_connector_filesystem.worker:FilesystemWorker",
            abilities=ConnectorAbilities(groups=True, kinds=(), asynchronous=True),
        ),
    )
