"""Server-sent events that carry the name of their kind."""

from __future__ import annotations

import logging

import msgspec

from pegboard_server_openai.faults import HttpError, fault_of

__all__ = ["named_event", "stream_fault"]

_LOG = logging.getLogger("pegboard.plugin.server-openai")
_ENCODE = msgspec.json.Encoder().encode


def named_event(content: msgspec.Struct) -> bytes:
    """One event, called as the struct is tagged."""
    kind = content.__struct_config__.tag
    return b"event: " + str(kind).encode() + b"\ndata: " + _ENCODE(content) + b"\n\n"


def stream_fault(error: Exception) -> HttpError:
    """What the reader of a stream is told of an error; those that are no deliberate ones are
    logged."""
    fault = fault_of(error)
    if fault.status == 500 and fault is not error:
        _LOG.error("a stream failed", exc_info=error)
    return fault
