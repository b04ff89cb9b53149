"""The core's own sub-commands, as data: ``pegboard --help`` reads this and imports none of them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMMANDS", "CommandEntry"]


class CommandEntry(NamedTuple):
    """One sub-command, its name one word or two; `target` is ``"module:attribute"`` as in
    `pegboard.api.command.Command`."""

    name: str
    help: str
    target: str


COMMANDS = (
    CommandEntry("bench", "Measure the speed of a model or a server", "pegboard.cli.groups:bench"),
    CommandEntry(
        "bench latency", "Time a batch that is sent at once", "pegboard.cli.bench:latency"
    ),
    CommandEntry(
        "collect-env",
        "Print what a bug report should have",
        "pegboard.cli.collect_env:app",
    ),
    CommandEntry(
        "plugins", "Show, check and lock the installed plugins", "pegboard.cli.plugins:app"
    ),
    CommandEntry("run", "Complete one prompt with a model", "pegboard.cli.run:app"),
)
