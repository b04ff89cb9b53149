"""``pegboard plugins``: what is installed, what became of it and why; its checks stand in
`pegboard.cli.plugin_checks`.

The table is set by hand and the arguments go through argparse: typer and rich would each take over
a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pegboard.cli.dispatch import ArgvCommand
from pegboard.plugins import VARIABLE, Board, LoadPolicy, PluginRecord, build_board

if TYPE_CHECKING:
    import argparse

    from pegboard.cli.parser import Parser

__all__ = ["doctor", "list_all", "lock", "verify"]

Run = Callable[["argparse.Namespace", LoadPolicy], int]

_HEADER = (
    *("id", "distribution", "version", "group", "surfaces", "state", "processes", "import"),
    "registered",
)
_ALL_PROCESSES = 3
_SHOWN_KEYS = 4


def _parser(name: str, about: str) -> Parser:
    from pegboard.cli.parser import Parser

    parser = Parser(prog=f"pegboard plugins {name}", description=about)
    parser.add_argument(
        "--no-plugins-except",
        metavar="LIST",
        help=f"a second allowlist beside {VARIABLE}, of the same form",
    )
    return parser


def _add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _parsed(parser: Parser, words: Sequence[str], run: Run) -> int:
    try:
        options = parser.parse(words)
    except SystemExit as done:
        return int(done.code or 0)
    return run(options, LoadPolicy(only=options.no_plugins_except))


def _list(words: Sequence[str]) -> int:
    if not {*words} - {"--json"}:  # without a parser, which takes a while to be imported
        return _show(LoadPolicy(), as_json=bool(words))
    parser = _parser("list", "List every plugin found, with its state and what it registered.")
    _add_json(parser)
    return _parsed(parser, words, lambda options, policy: _show(policy, options.json))


def _show(policy: LoadPolicy, as_json: bool) -> int:
    board = build_board(policy=policy)
    print(_as_json(board) if as_json else _as_text(board))
    return 0


def _doctor(words: Sequence[str]) -> int:
    from pegboard.cli import plugin_checks

    parser = _parser(
        "doctor",
        "Look for what is wrong with the installed plugins; exits with 1 if something is.",
    )
    _add_json(parser)
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 also where there are only warnings"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="time that importing one part of a plugin may take (default: 60)",
    )
    return _parsed(parser, words, plugin_checks.doctor)


def _lock(words: Sequence[str]) -> int:
    from pegboard.cli import plugin_checks  # with hashes: not for a quick list

    about = "Write down which plugins run here, with the hashes of their files."
    return _parsed(_with_file(_parser("lock", about)), words, plugin_checks.lock)


def _verify(words: Sequence[str]) -> int:
    from pegboard.cli import plugin_checks

    about = "Compare the installed plugins with a lock; exits with 1 if they differ."
    parser = _with_file(_parser("verify", about))
    _add_json(parser)
    return _parsed(parser, words, plugin_checks.verify)


def _with_file(parser: Parser) -> Parser:
    parser.add_argument("file", nargs="?", help="default: pegboard-plugins.lock")
    return parser


doctor, list_all, lock, verify = map(ArgvCommand, (_doctor, _list, _lock, _verify))


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
    import textwrap  # only where there is something to say

    return textwrap.fill(text, width=110, initial_indent="* ", subsequent_indent="  ")
