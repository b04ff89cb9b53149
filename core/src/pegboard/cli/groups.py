"""The core's groups of commands; what belongs to one is told by the names of commands."""

from __future__ import annotations

from functools import partial

from pegboard.cli.dispatch import ArgvCommand, run_group

__all__ = ["bench"]

bench = ArgvCommand(partial(run_group, "bench"))
