"""Descriptor of the scripted KV connector; imports no torch."""

from __future__ import annotations

from pegboard.api.connector import ConnectorAbilities, KVConnector

__all__ = ["SCRIPTED_CONNECTOR"]

SCRIPTED_CONNECTOR = KVConnector(
    name="scripted",
    scheduler="pegboard.testing.scripted_connector:make_scheduler",
    worker="pegboard.testing.scripted_connector:make_worker",
    abilities=ConnectorAbilities(groups=True, kinds=(), asynchronous=True),
)
"""See `pegboard.testing.scripted_connector`."""
