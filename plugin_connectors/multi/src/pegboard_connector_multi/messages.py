"""What the two halves of ``multi`` tell each other."""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard.api.connector import Load, TransferReport

__all__ = ["OWNERS", "ChildOrder", "Orders", "Shared", "Told", "pack"]

OWNERS = 4096
"""Loads whose owners are remembered, far more than can be on their way."""


class Shared(msgspec.Struct, frozen=True):
    """Blocks that several connectors hold or keep."""

    children: list[int]
    """Their places."""
    timeout: float
    """Seconds until nobody waits for them any more."""


class ChildOrder(msgspec.Struct):
    """One connector's part of a step."""

    metadata: Any = None
    loads: list[Load] = []
    """Those that begin with this step."""
    broken: bool = False
    """Its scheduler half broke down: its worker half is only polled."""


class Orders(msgspec.Struct):
    """Metadata of one step."""

    step_id: int
    rows: bool
    """There is a forward pass."""
    children: list[ChildOrder]
    lost: list[Load] = []
    """Loads that no connector knows of; they fail."""
    holds: Shared | None = None
    keeps: dict[int, Shared] = {}
    """By `Finished.keep_id`."""


class Told(msgspec.Struct):
    """What each worker half reported."""

    reports: list[TransferReport]


def pack(message: msgspec.Struct) -> Any:
    """Plain data."""
    return msgspec.to_builtins(message, builtin_types=(bytes,))
