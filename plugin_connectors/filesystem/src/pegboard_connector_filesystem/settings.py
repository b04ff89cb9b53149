"""``kv_connector_extra_config`` of the connector ``filesystem``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from pegboard.api.settings import check_keys, refused, setting_names
from pegboard.errors import ConfigError

__all__ = ["Settings"]

EVICTIONS = ("lru", "arc")
GIB = 2**30

_WHERE = "kv_connector_extra_config"


def _reject(key: str, value: object, allowed: str) -> ConfigError:
    return refused(_WHERE, key, value, allowed)


def _whole(least: int, most: int) -> Callable[[Any, attrs.Attribute[int], Any], None]:
    def check(_: Any, field: attrs.Attribute[int], value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise _reject(field.name, value, f"a whole number from {least} to {most}")

    return check


def _seconds(_: Any, field: attrs.Attribute[float], value: Any) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9
    if not good:
        raise _reject(field.name, value, "a number of seconds, at least 0")


def _flag(_: Any, field: attrs.Attribute[bool], value: Any) -> None:
    if not isinstance(value, bool):
        raise _reject(field.name, value, "true or false")


def _folder(_: Any, field: attrs.Attribute[str], value: Any) -> None:
    allowed = "the path of a folder"
    if not isinstance(value, str) or not value:
        raise _reject(field.name, value, allowed)
    try:
        Path(value).expanduser()
        good = b"\0" not in os.fsencode(value)
    except (ValueError, RuntimeError) as error:  # no name of a file, or of a user
        raise _reject(field.name, value, f"{allowed} ({error})") from None
    if not good:
        raise _reject(field.name, value, f"{allowed} (without NUL)")


def _eviction(_: Any, field: attrs.Attribute[str], value: Any) -> None:
    if value not in EVICTIONS:
        raise _reject(field.name, value, "one of " + ", ".join(EVICTIONS))


@attrs.frozen(kw_only=True)
class Settings:
    """Where blocks are kept and how. `read` checks every key."""

    path: str = attrs.field(validator=_folder)
    """The folder. Engines may share it, also engines of different models; ``~`` is expanded."""
    max_bytes: int = attrs.field(default=16 * GIB, validator=_whole(1, 2**62))
    """Budget for all files under `path` together, whichever model they belong to."""
    eviction: str = attrs.field(default="lru", validator=_eviction)
    """What makes room: ``"lru"`` or ``"arc"``."""
    threads: int = attrs.field(default=4, validator=_whole(1, 64))
    """Threads that read and write."""
    queue_bytes: int = attrs.field(default=GIB // 4, validator=_whole(1, 2**62))
    """Host memory for copies of blocks that wait to be written; what would exceed it is not
    saved."""
    checksum: bool = attrs.field(default=True, validator=_flag)
    """Write and demand a checksum of the content. Without it only the header is protected."""
    fsync: bool = attrs.field(default=False, validator=_flag)
    """Flush each file, and its folder, to the device. Without it the last blocks before a power
    failure may be lost or found damaged; damaged ones are removed and not loaded."""
    load_timeout: float = attrs.field(default=60.0, validator=_seconds)
    """Seconds that a load may take before it counts as failed."""
    rescan_seconds: float = attrs.field(default=30.0, validator=_seconds)
    """How often the folder is read again for what other engines did; 0: only at the start."""
    pause_seconds: float = attrs.field(default=60.0, validator=_seconds)
    """How long nothing is saved after a write failed, because the disk is full say."""
    drain_seconds: float = attrs.field(default=30.0, validator=_seconds)
    """How long the end of the engine waits for blocks that are still to be written."""

    @property
    def root(self) -> Path:
        """`path`, expanded."""
        return Path(self.path).expanduser()

    def check_room(self, nbytes: int) -> None:
        """Raises `ConfigError` if a file of so many bytes never fits."""
        if self.max_bytes < nbytes:
            allowed = f"at least {nbytes}, the bytes of one block's file"
            raise _reject("max_bytes", self.max_bytes, allowed)

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Settings:
        """Raises `ConfigError` naming the key, the value and what is allowed."""
        check_keys(_WHERE, given, setting_names(cls), required=["path"])
        return cls(**given)
