"""Which of several ranks a process is. No torch here: the engine's process needs none."""

from __future__ import annotations

import attrs

__all__ = ["RankPlace"]


@attrs.frozen
class RankPlace:
    """A rank, how many there are, and where they meet."""

    rank: int = 0
    world: int = 1
    address: str = ""
    """As in `DeviceRuntime.communicate`."""
