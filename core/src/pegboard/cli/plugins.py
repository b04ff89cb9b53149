"""``pegboard plugins``: what is installed, what became of it and why; its checks stand in
`pegboard.cli.plugin_checks`.

The table is set by hand and the arguments go through argparse: typer and rich would each take over
a tenth of a second.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence

from pegboard.cli.dispatch import ArgvCommand, invoke
from pegboard.cli.parser import Parser
from pegboard.plugins import VARIABLE, Board, LoadPolicy, PluginRecord, build_board

__all__ = ["COMMANDS", "app"]

_HEADER = (
    *("id", "distribution", "version", "group", "surfaces", "state", "processes", "import"),
    "registered",
)
_ALL_PROCESSES = 3
_SHOWN_KEYS = 4
COMMANDS = {
    "list": "list every plugin found, with its state and what it registered",
    "doctor": "look for what is wrong with the installed plugins; exits with 1 if something is",
    "lock": "write down which plugins run here, with the hashes of their files",
    "verify": "compare the installed plugins with a lock; exits with 1 if they differ",
}
NEW = "plugins new"


def _main(words: Sequence[str]) -> int:
    parser = Parser(
        prog="pegboard plugins", description="Inspect, check and lock the installed plugins."
    )
    commands = parser.add_commands()
    for name, about in COMMANDS.items():
        description = f"{about[0].upper()}{about[1:]}."
        command = commands.add_parser(name, help=about, description=description)
        if name in ("list", "doctor"):
            command.add_argument("--json", action="store_true", help="print one JSON object")
        else:
            command.add_argument("file", nargs="?", help="default: pegboard-plugins.lock")
        command.add_argument(
            "--no-plugins-except",
            metavar="LIST",
            help=f"a second allowlist beside {VARIABLE}, of the same form",
        )
        if name == "doctor":
            _add_doctor_options(command)
    commands.add_parser("new", help="write a small complete plugin, with its tests", add_help=False)
    if words[:1] == ["new"]:
        return _write_new(words[1:])
    try:
        options = parser.parse(words)
    except SystemExit as done:
        return int(done.code or 0)
    policy = LoadPolicy(only=options.no_plugins_except)
    if options.command == "list":
        board = build_board(policy=policy)
        print(_as_json(board) if options.json else _as_text(board))
        return 0
    from pegboard.cli import plugin_checks  # with hashes or subprocesses: not for a quick list

    run: Callable[[argparse.Namespace, LoadPolicy], int] = getattr(plugin_checks, options.command)
    return run(options, policy)


def _add_doctor_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--strict", action="store_true", help="exit with 1 also where there are only warnings"
    )
    command.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time that importing one part of a plugin may take (default: 60)",
    )


app = ArgvCommand(_main)


def _write_new(words: Sequence[str]) -> int:
    """What a plugin registers as the command of this name."""
    board = build_board(surfaces=("command",))
    command = board.require("command", NEW, wanted_by=f"pegboard {NEW}")
    return invoke(command.app.load(), NEW, list(words))


def _as_json(board: Board) -> str:
    import json

    content = {
        "allowlist": {"variable": VARIABLE, "value": board.allowlist.value},
        "no_plugins_except": board.allowlist.also and board.allowlist.also.value,
        "core": board.core.as_dict(),
        "plugins": [record.as_dict() for record in board.plugins],
        "notices": list(board.notices),
    }
    return json.dumps(content, indent=2)


def _as_text(board: Board) -> str:
    if not board.plugins:
        table = "No plugins are installed."
    else:
        table = "\n".join(_aligned([_HEADER, *map(_row, board.plugins)]))
    reasons = [
        f"{record.qualified} is {record.state}: {record.reason}"
        for record in board.plugins
        if record.reason
    ]
    paragraphs = [table, *map(_wrapped, reasons), *map(_wrapped, _other_notices(board))]
    return "\n".join(paragraphs)


def _row(record: PluginRecord) -> tuple[str, ...]:
    seconds = f"{1000 * record.import_seconds:.0f} ms" if record.import_seconds else "-"
    return (
        record.id,
        record.distribution,
        record.version,
        record.group.rpartition(".")[2],
        ",".join(record.surfaces) or "-",
        record.state,
        "all" if len(record.processes) == _ALL_PROCESSES else ",".join(record.processes),
        seconds,
        _registered(record),
    )


def _registered(record: PluginRecord) -> str:
    """``model:llama (hf:LlamaForCausalLM, +3)``: names with the first few claims."""
    parts = []
    for item in record.registered:
        shown = [*item.claims[:_SHOWN_KEYS]]
        if len(item.claims) > _SHOWN_KEYS:
            shown.append(f"+{len(item.claims) - _SHOWN_KEYS}")
        claims = f" ({', '.join(shown)})" if shown else ""
        parts.append(f"{item.surface}:{item.name}{claims}")
    return ", ".join(parts) or "-"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _other_notices(board: Board) -> list[str]:
    """Notices that no record's reason tells already."""
    told = [record.reason for record in board.plugins if record.reason]
    return [notice for notice in board.notices if not any(reason in notice for reason in told)]


def _wrapped(text: str) -> str:
    return textwrap.fill(text, width=110, initial_indent="* ", subsequent_indent="  ")
