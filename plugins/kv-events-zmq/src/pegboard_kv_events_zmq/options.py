"""Options of the publisher, with the names and defaults that the field uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from pegboard.api.settings import check_keys, refused, setting_names
from pegboard.errors import ConfigError

__all__ = ["ZmqOptions"]

MOST_PORT = 65535
_WHERE = "kv_events_config"
MOST_STEPS = (1 << 30) - 2
"""The replay socket's high-water mark, twice as many and two, is a 32-bit integer."""

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def reject(field: str, value: object, allowed: str) -> ConfigError:
    """An error that names the option, its value and what is allowed."""
    return refused(_WHERE, field, value, allowed)


def _count(least: int, most: int = (1 << 31) - 1) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise reject(field.name, value, f"an integer from {least} to {most}")

    return check


def _endpoint(optional: bool) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if value is None and optional:
            return
        transports = ("tcp://", "ipc://", "inproc://")
        if not isinstance(value, str) or not value.startswith(transports):
            suffix = " or null" if optional else ""
            raise reject(field.name, value, f"an address with {', '.join(transports)}{suffix}")
        if not _is_utf8(value):
            raise reject(field.name, value, "text that UTF-8 can hold")
        if "\0" in value:
            raise reject(field.name, value, "an address without NUL")
        if value.startswith("tcp://") and not _has_port(value):
            raise reject(field.name, value, "a port from 0 to 65535 or * at the end")

    return check


def _has_port(endpoint: str) -> bool:
    """ZeroMQ itself takes a port modulo 65536."""
    port = endpoint.rpartition(":")[2]
    digits = port.isascii() and port.isdigit() and len(port) <= len("65535")
    return port == "*" or (digits and int(port) <= MOST_PORT)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _topic(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not _is_utf8(value):
        raise reject(field.name, value, "a string that UTF-8 can hold")


def _kind(wanted: type, words: str) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, wanted):
            raise reject(field.name, value, words)

    return check


@attrs.frozen(kw_only=True)
class ZmqOptions:
    """The keys of ``kv_events_config`` that belong to this publisher."""

    endpoint: str = attrs.field(default="tcp://*:5557", validator=_endpoint(optional=False))
    """Address of the PUB socket. With ``*`` or ``::`` in it, and for ``ipc`` and ``inproc``, it is
    bound, else connected to."""
    replay_endpoint: str | None = attrs.field(default=None, validator=_endpoint(optional=True))
    """Address that the replay socket binds. None: no replay."""
    buffer_steps: int = attrs.field(default=10_000, validator=_count(1, MOST_STEPS))
    """Batches that are kept for replay."""
    hwm: int = attrs.field(default=100_000, validator=_count(0))
    """Batches that ZeroMQ queues for one slow subscriber before it loses some; 0 for no limit."""
    max_queue_size: int = attrs.field(default=100_000, validator=_count(1))
    """Batches that wait for the sending thread before the engine's are dropped."""
    topic: str = attrs.field(default="", validator=_topic)
    use_int_block_hashes: bool = attrs.field(default=True, validator=_kind(bool, "true or false"))
    """Hashes as the integer of their last 64 bits; false: as 32 bytes."""

    @replay_endpoint.validator
    def _check_distinct(self, field: attrs.Attribute[Any], value: object) -> None:
        system_chooses = str(value).startswith("tcp://") and str(value).endswith((":*", ":0"))
        if value == self.endpoint and not system_chooses:
            raise reject(field.name, value, "another address than endpoint's")

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> ZmqOptions:
        """Check and take over; `ConfigError` names an unknown key, or a bad value."""
        check_keys(_WHERE, given, setting_names(cls))
        return cls(**given)
