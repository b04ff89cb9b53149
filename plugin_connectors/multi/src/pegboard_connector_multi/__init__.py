"""Several KV connectors in order, for Pegboard."""

from __future__ import annotations

from pegboard.api.connector import ConnectorAbilities, KVConnector
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"connector": 0}


@hookimpl
def pegboard_connectors() -> tuple[KVConnector, ...]:
    """The connector ``multi``; the connectors inside it refuse for themselves what they cannot."""
    return (
        KVConnector(
            name="multi",
            scheduler="pegboard_connector_multi.scheduler:MultiScheduler",
            worker="pegboard_connector_multi.worker:MultiWorker",
            abilities=ConnectorAbilities(groups=True, kinds=(), asynchronous=True),
        ),
    )
