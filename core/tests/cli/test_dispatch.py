"""The dispatcher: commands, errors and exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pegboard
from pegboard.__about__ import __version__
from pegboard.cli import dispatch, main, table
from pegboard.cli.table import CommandEntry

SOURCE = str(Path(pegboard.__file__).parents[1])

COMMANDS = """
import typer
from pegboard.errors import ConfigError, PegboardError, ResourceError
from pegboard.cli.dispatch import ArgvCommand
from pegboard.logging import get_logger

app = typer.Typer(add_completion=False)

@app.command()
def act(kind: str, times: int = 1):
    print("acted", kind, times)
    if kind == "bad":
        raise ConfigError("field is 3; allowed are 1, 2")
    if kind == "log":
        get_logger("pegboard.act").info("something happened")
    if kind == "full":
        raise ResourceError("does not fit")
    if kind == "interrupt":
        raise KeyboardInterrupt
    if kind == "exit":
        raise typer.Exit(7)
    if kind == "bug":
        raise ZeroDivisionError("a bug")

def plain(word: str):
    print("plain", word)

quick = ArgvCommand(lambda words: print(*words) or 5)
number = 3
"""


@pytest.fixture
def fake_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fake_commands.py").write_text(COMMANDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delenv("PEGBOARD_TRACEBACK", raising=False)
    names = {"act": "app", "plain": "plain", "quick": "quick", "number": "number"}
    entries = tuple(CommandEntry(n, f"Do {n}", f"fake_commands:{a}") for n, a in names.items())
    monkeypatch.setattr(table, "COMMANDS", (*entries, CommandEntry("gone", "", "fake_gone:app")))
    monkeypatch.setattr(dispatch, "_command_board", lambda: pytest.fail("looked at plugins"))


@pytest.mark.usefixtures("fake_commands")
@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("act good", 0, "acted good 1", ""),
        ("act good --times 3", 0, "acted good 3", ""),
        ("act bad", 2, "", "pegboard: error: field is 3; allowed are 1, 2\n"),
        ("act full", 1, "", "pegboard: error: does not fit\n"),
        ("act log", 0, "", '"event": "something happened"'),
        ("act exit", 7, "", ""),
        ("act good --times x", 2, "", "--times"),
        ("act", 2, "", "Usage: pegboard act"),
        ("act --help", 0, "Usage: pegboard act", ""),
        ("plain hello", 0, "plain hello", ""),
        ("quick a --b", 5, "a --b", ""),
        ("number", 1, "", "pegboard: error: command 'number' refers to int"),
        ("gone", 1, "", "pegboard: error: cannot import 'fake_gone:app'"),
        ("--wrong", 2, "", "pegboard: error: there is no option '--wrong'"),
    ],
)
def test_commands_and_their_exit_codes(
    line: str, code: int, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch.run(line.split()) == code
    shown = capsys.readouterr()
    assert out in shown.out
    assert err in shown.err
    assert "Traceback" not in shown.err


@pytest.mark.usefixtures("fake_commands")
def test_the_traceback_is_there_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEGBOARD_TRACEBACK", "1")
    with pytest.raises(ValueError, match="field is 3"):
        dispatch.run(["act", "bad"])


@pytest.mark.usefixtures("fake_commands")
def test_a_bug_is_not_disguised_as_an_error() -> None:
    hook = sys.excepthook
    with pytest.raises(ZeroDivisionError):
        dispatch.run(["act", "bug"])
    assert sys.excepthook is hook


@pytest.mark.usefixtures("fake_commands")
def test_an_interrupt_ends_with_its_customary_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch.run(["act", "interrupt"]) in (1, 130)
    assert "Traceback" not in capsys.readouterr().err


def test_main_is_what_the_script_calls(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pegboard", "--version"])
    assert main() == 0
    assert capsys.readouterr().out == f"pegboard {__version__}\n"


@pytest.mark.parametrize(
    ("word", "hint"),
    [("plugin", "did you mean 'plugins'?"), ("zzzzz", "commands are bench, ")],
)
def test_an_unknown_command_is_answered_with_the_nearest(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dispatch.run([word]) == 2
    error = capsys.readouterr().err
    assert f"there is no command {word!r}" in error and hint in error


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch.run(words) == 0
    text = capsys.readouterr().out
    assert text.startswith("Usage: pegboard")
    for entry in table.COMMANDS:
        assert entry.name in text and entry.help in text


def test_a_closed_pipe_is_no_traceback() -> None:
    code = "import sys; from pegboard.cli import main; sys.exit(main())"
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", code, "--help"]
    done = subprocess.run(
        command, stdout=writer, stderr=subprocess.PIPE, env=environ, check=False, text=True
    )
    os.close(writer)
    assert done.returncode == 1 and done.stderr == ""


def test_a_command_that_no_plugin_brought_is_told_with_who_would(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert dispatch.run(["plugins", "new", "logits", "pace"]) == 1
    error = capsys.readouterr().err
    assert "no loaded plugin provides command 'plugins new'" in error
    assert "pegboard-testkit" in error and "VLLM_PLUGINS" in error


def test_arguments_of_logits_processors_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch.run(["run", "nowhere", "text", "--extra-args", "{pace"]) == 2
    assert "--extra-args '{pace' is not allowed: no JSON" in capsys.readouterr().err
    assert dispatch.run(["run", "nowhere", "text", "--extra-args", "[1]"]) == 2
    assert "extra_args=[1] is not allowed: a mapping" in capsys.readouterr().err
