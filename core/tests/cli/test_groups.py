"""Commands of two words, and the nearest spelling of what is unknown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pegboard.api.command import Command
from pegboard.cli import dispatch
from pegboard.errors import PluginError
from pegboard.plugins import Board, build_board

APP = """
def swim(times: int = 1):
    '''Swim.'''
    print("swam", times)

def sleep():
    print("slept")
"""


def commands(*pairs: tuple[str, str]) -> list[tuple[str, Command]]:
    return [("command", Command(name, f"Do {name}", f"far_app:{app}")) for name, app in pairs]


@pytest.fixture
def plugged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    (tmp_path / "far_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "far_app", raising=False)

    def plug(*pairs: tuple[str, str]) -> None:
        def board() -> Board:
            return build_board(environ={"VLLM_PLUGINS": ""}, extra=commands(*pairs))

        monkeypatch.setattr(dispatch, "_command_board", board)

    return plug


def test_a_plugins_command_joins_a_group_of_the_core(
    plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged(("bench swim", "swim"))
    assert dispatch.run(["bench", "swim", "--times", "3"]) == 0
    assert capsys.readouterr().out == "swam 3\n"
    assert dispatch.run(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert "  latency  Time a batch" in text and "  swim     Do bench swim" in text


def test_the_help_of_a_group_imports_none_of_its_commands(
    plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged(("bench swim", "no_such_name"))
    assert dispatch.run(["bench"]) == 0
    assert "swim" in capsys.readouterr().out
    assert "far_app" not in sys.modules


@pytest.mark.parametrize("words", [["plugins"], ["plugins", "--help"], ["plugins", "help"], []])
def test_every_command_about_plugins_is_listed_with_a_line(
    words: list[str], plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged(("plugins swim", "no_such_name"))
    assert dispatch.run(words) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    for name in ("doctor", "list", "lock", "swim", "verify"):
        start = [name] if words else ["plugins", name]
        (line,) = [line for line in shown if line[: len(start)] == start]
        assert len(line) > len(start) + 2
    assert "far_app" not in sys.modules


def test_a_plugins_command_joins_those_about_plugins(
    plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged(("plugins swim", "swim"))
    assert dispatch.run(["plugins", "swim", "--times", "2"]) == 0
    assert capsys.readouterr().out == "swam 2\n"


def test_a_plugin_may_have_a_group_of_its_own(
    plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged(("pool swim", "swim"), ("pool sleep", "sleep"))
    assert dispatch.run(["pool", "sleep"]) == 0
    assert capsys.readouterr().out == "slept\n"
    assert dispatch.run(["pool"]) == 0
    assert "Usage: pegboard pool COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("bench swmi", "there is no command 'bench swmi'; did you mean 'bench swim'?"),
        ("bench zzz", "commands are bench latency, bench swim"),
        ("bench --json", "there is no option '--json' before the command"),
        ("bench swim --tmes 3", "--times"),
        ("--hlp", "did you mean '--help'?"),
        ("plugins lst", "there is no command 'plugins lst'; did you mean 'plugins list'?"),
        ("plugins list --jsn", "unrecognized arguments: --jsn; did you mean '--json'?"),
        ("plugins doctor --tmeout=3", "did you mean '--timeout'?"),
        ("collect-env --no-plugin-except x", "did you mean '--no-plugins-except'?"),
    ],
)
def test_what_is_unknown_is_answered_with_the_nearest(
    line: str, told: str, plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged(("bench swim", "swim"))
    assert dispatch.run(line.split()) == 2
    assert told in capsys.readouterr().err


def test_a_command_of_this_release_that_is_not_installed_is_told_with_its_distribution(
    plugged: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    plugged()
    assert dispatch.run(["serve", "model"]) == 1
    assert "pegboard-server-openai" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bench", "bench latency"])
def test_a_name_of_the_core_is_taken(name: str) -> None:
    with pytest.raises(PluginError, match=f"command '{name}' is registered"):
        build_board(environ={"VLLM_PLUGINS": ""}, extra=commands((name, "swim")))


@pytest.mark.parametrize("name", ["", "a b c", " a", "a  b", "--a", "a -b"])
def test_a_name_that_could_not_be_typed_is_refused(name: str) -> None:
    with pytest.raises(PluginError, match="one word, or two"):
        Command(name, "Do it", "far_app:swim")


def test_the_list_of_a_group_loads_no_command_line_library() -> None:
    code = (
        "import sys; sys.argv = ['pegboard', 'bench']\n"
        "from pegboard.cli import main; main()\n"
        "print(sorted({'torch', 'typer', 'click', 'httpx', 'argparse'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-Ic", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
