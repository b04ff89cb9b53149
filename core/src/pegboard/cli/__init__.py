"""The command line. A command's own libraries are imported when the command is used, not before."""

from __future__ import annotations

__all__ = ["main"]


def main() -> int:
    """Entry point of the ``pegboard`` script; returns the exit code."""
    from pegboard.cli.dispatch import run

    return run()
