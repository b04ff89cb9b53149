"""The core's groups of commands; what belongs to one is told by the names of commands."""

from __future__ import annotations

from functools import partial

from pegboard.cli.dispatch import ArgvCommand, run_group

__all__ = ["bench", "plugins"]

bench = ArgvCommand(partial(run_group, "bench"))
plugins = ArgvCommand(partial(run_group, "plugins"))
