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
        "plugins", "Show, check and lock the installed plugins", "pegboard.cli.groups:plugins"
    ),
    CommandEntry(
        "plugins doctor",
        "Look for what is wrong with the installed plugins",
        "pegboard.cli.plugins:doctor",
    ),
    CommandEntry(
        "plugins list",
        "List every plugin found, its state and what it registered",
        "pegboard.cli.plugins:list_all",
    ),
    CommandEntry(
        "plugins lock",
        "Write down which plugins run here, with hashes of their files",
        "pegboard.cli.plugins:lock",
    ),
    CommandEntry(
        "plugins verify", "Compare the installed plugins with a lock", "pegboard.cli.plugins:verify"
    ),
    CommandEntry("run", "Complete one prompt with a model", "pegboard.cli.run:app"),
)
