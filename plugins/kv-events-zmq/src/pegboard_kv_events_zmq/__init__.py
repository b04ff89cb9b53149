"""KV cache events over ZeroMQ for Pegboard."""

from __future__ import annotations

from pegboard.api.events import EventPublisher
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"events": 0}


@hookimpl
def pegboard_event_publishers() -> tuple[EventPublisher, ...]:
    """The publisher ``zmq``."""
    return (EventPublisher(name="zmq", open="pegboard_kv_events_zmq.publisher:ZmqPublisher"),)
