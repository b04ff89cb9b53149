"""From ``sys.argv`` to a command, and from its errors to an exit code.

This layer parses two options and one word by hand: importing a command-line library would take
longer than everything else that ``pegboard --help`` does. Each command parses its own arguments.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pegboard.cli.streams import check_output, output_fault, prepare_streams, say
from pegboard.errors import ConfigError, PegboardError, PluginError

if TYPE_CHECKING:
    from pegboard.api.command import Command
    from pegboard.plugins import Board

__all__ = ["TRACEBACK_VARIABLE", "ArgvCommand", "invoke", "run", "run_group"]

TRACEBACK_VARIABLE = "PEGBOARD_TRACEBACK"

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

_USAGE = """Usage: pegboard COMMAND [ARGS]...

An LLM inference engine that is a board with pegs.

Options:
  -h, --help     Show this text; 'pegboard COMMAND --help' shows a command's own
  -V, --version  Show the version
"""


class ArgvCommand(NamedTuple):
    """A command that parses its own words, for those that must start quickly.

    `function` returns the exit code.
    """

    function: Callable[[Sequence[str]], int]


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: ``sys.argv``) and return its exit code.

    0: done; 1: failed; 2: bad input; 130: interrupted. Deliberate errors, and a standard output
    that cannot be written to, are one message on stderr (a reader that left is none);
    with ``PEGBOARD_TRACEBACK=1`` they pass through with their traceback.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    prepare_streams()
    try:
        check_output()
        code = _dispatch(words)
        sys.stdout.flush()
        return code
    except PegboardError as error:
        if os.environ.get(TRACEBACK_VARIABLE) == "1":
            raise
        say(f"pegboard: error: {error}")
        return EXIT_BAD_INPUT if isinstance(error, ValueError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as error:
        fault = output_fault(error)
        if fault is None:
            raise
        if not isinstance(error, BrokenPipeError):  # a reader that leaves is no fault
            say(f"pegboard: error: cannot write to standard output: {fault}")
        return EXIT_FAILED


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help_text())
        return EXIT_OK
    if words[0] in ("-V", "--version"):
        from pegboard.__about__ import __version__

        print(f"pegboard {__version__}")
        return EXIT_OK
    if words[0].startswith("-"):
        raise _unknown_option(words[0])
    return _run_command(words)


def _run_command(words: list[str]) -> int:
    """Run what the first word names, or the first two. The core's own commands are found without
    looking at any plugin."""
    pairs = [(" ".join(words[:count]), words[count:]) for count in (2, 1) if len(words) >= count]
    for name, rest in pairs:
        app = _core_app(name)
        if app is not None:
            return invoke(app, name, rest)
    board = _command_board()
    for name, rest in pairs:
        command: Command | None = board.find("command", name, wanted_by=f"pegboard {name}")
        if command is not None:
            return invoke(command.app.load(), name, rest)
    if any(name.startswith(f"{words[0]} ") for name in board.registry("command").names()):
        return run_group(words[0], words[1:], board)
    raise _unknown(words[0], board)


def run_group(group: str, words: Sequence[str], board: Board | None = None) -> int:
    """Run ``pegboard <group> <words>``, where no command of two words was found in the core.

    A command whose name is two words belongs to the group that the first word names. Without a
    further word, or asked for help, the group lists its commands from their descriptors, so that
    none of them is imported. Raises `ConfigError` for a word that no command of the group has.
    """
    board = board or _command_board()
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(_group_help(group, board))
        return EXIT_OK
    if words[0].startswith("-"):
        raise ConfigError(
            f"there is no option {words[0]!r} before the command; see 'pegboard {group} --help'"
        )
    name = f"{group} {words[0]}"
    command: Command | None = board.find("command", name, wanted_by=f"pegboard {name}")
    if command is None:
        raise _unknown(name, board, prefix=f"{group} ")
    return invoke(command.app.load(), name, list(words[1:]))


def _core_app(name: str) -> Any:
    """The application of a command of the core, None if it has none of this name."""
    from pegboard.cli.table import COMMANDS

    for entry in COMMANDS:
        if entry.name == name:
            from pegboard.api.descriptor import LazyRef

            return LazyRef(entry.target).load()
    return None


def invoke(app: Any, name: str, words: list[str]) -> int:
    """Run the application of a command called `name`; its exit code."""
    if isinstance(app, ArgvCommand):
        return app.function(words)
    import typer

    from pegboard.logging import setup_logging

    setup_logging()
    if not isinstance(app, typer.Typer):
        if not callable(app):
            raise PluginError(
                f"command {name!r} refers to {type(app).__name__}, not a typer.Typer or a function"
            )
        plain: Any = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
        function, app = app, typer.Typer(add_completion=False, **plain)
        app.command()(function)
    try:
        # The click command itself: Typer's own call would replace sys.excepthook.
        typer.main.get_command(app).main(args=words, prog_name=f"pegboard {name}")
    except SystemExit as done:
        return _exit_code(done.code)
    return EXIT_OK


def _exit_code(code: Any) -> int:
    if code is None:
        return EXIT_OK
    if isinstance(code, int):
        return code
    say(str(code))
    return EXIT_FAILED


def _command_board() -> Board:
    """A board with only those plugins that declare commands; the others stay unimported."""
    from pegboard.plugins import build_board

    return build_board(surfaces=("command",))


def _help_text() -> str:
    board = _command_board()
    rows = [(command.name, command.help) for command in board.registry("command")]
    text = f"{_USAGE}\nCommands:\n{_listed(rows)}"
    broken = [record.id for record in board.plugins if record.state in ("failed", "incompatible")]
    if broken:
        text += f"\nPlugins that did not load: {', '.join(broken)}; see 'pegboard plugins list'\n"
    return text


def _group_help(group: str, board: Board) -> str:
    commands, prefix = list(board.registry("command")), f"{group} "
    about = "".join(f"{command.help}.\n\n" for command in commands if command.name == group)
    rows = [(c.name[len(prefix) :], c.help) for c in commands if c.name.startswith(prefix)]
    return (
        f"Usage: pegboard {group} COMMAND [ARGS]...\n\n{about}Commands:\n{_listed(rows)}\n"
        f"'pegboard {group} COMMAND --help' shows a command's own options.\n"
    )


def _listed(rows: Sequence[tuple[str, str]]) -> str:
    """Names and what they do, sorted, one a line."""
    width = max(len(name) for name, _ in rows)
    return "".join(f"  {name:<{width}}  {about}\n" for name, about in sorted(rows))


def _unknown_option(word: str) -> ConfigError:
    from pegboard.plugins.nearest import nearest

    near = nearest(word.partition("=")[0], ("--help", "--version"))
    hint = f"; did you mean {near!r}?" if near else "; see 'pegboard --help'"
    return ConfigError(f"there is no option {word!r} before the command{hint}")


def _unknown(name: str, board: Board, prefix: str = "") -> PegboardError:
    """The error for a command that there is not, among those that begin with `prefix`."""
    from pegboard.plugins.nearest import nearest

    if board.offered("command", name):
        return board.absence("command", name, wanted_by=f"pegboard {name}")
    names = sorted(n for n in board.registry("command").names() if n.startswith(prefix))
    near = nearest(name[len(prefix) :], (n[len(prefix) :] for n in names))
    hint = f"; did you mean '{prefix}{near}'?" if near else f"; commands are {', '.join(names)}"
    chance = "" if near else board.chance("command", name)
    return ConfigError(f"there is no command {name!r}{hint}" + (chance and f". {chance}"))
