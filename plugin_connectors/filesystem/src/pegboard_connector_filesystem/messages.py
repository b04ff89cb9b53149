"""What the two halves tell each other."""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard.api.connector import Load

__all__ = ["Found", "Handshake", "Orders", "Save", "Told", "pack"]


class Found(msgspec.Struct, frozen=True, array_like=True):
    """A file below the root."""

    name: str
    size: int
    """Bytes."""
    used: int
    """When it was last written or loaded, nanoseconds since the epoch."""


class Handshake(msgspec.Struct):
    """Of the worker half, once."""

    sizes: dict[int, int]
    """Bytes of a block's file, by KV group."""
    files: list[Found]
    """What is there at the start."""


class Save(msgspec.Struct, frozen=True, array_like=True):
    """Write a block."""

    group: int
    block: int
    key: bytes
    victims: list[str]
    """Names of files to be removed first."""


class Orders(msgspec.Struct):
    """Metadata of one step."""

    loads: list[Load] = []
    dropped: list[int] = []
    saves: list[Save] = []
    removes: list[str] = []


class Told(msgspec.Struct):
    """What the worker half found out since it was last asked. All are names of files."""

    stored: list[str] = []
    unsaved: list[str] = []
    """Ordered, but not written."""
    gone: list[str] = []
    """Not there any more, or never were what they seemed."""
    removed: list[str] = []
    """As ordered."""
    paused: bool | None = None
    """Whether saves are refused from now on; None: as before."""
    listing: list[Found] | None = None
    """All files, as of after everything above."""


def pack(message: msgspec.Struct) -> Any:
    """Plain data."""
    return msgspec.to_builtins(message, builtin_types=(bytes,))
