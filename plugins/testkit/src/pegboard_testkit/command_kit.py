"""Conformance kit for the surface *command*: sub-commands of ``pegboard``.

A test file of a command subclasses `CommandKit`, names the descriptor, and says what may be typed::

    class TestMyCommand(CommandKit):
        command = MY_COMMAND
        allowed = (("three short words",), ("--letters", "a bc"))
        refused = ((), ("--colour", "red"))

Each command line runs in a process of its own, as it is typed.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

from pegboard.api.command import Command
from pegboard.testing.boards import board_with

__all__ = ["CommandKit"]

_START = """
import sys
from pegboard.cli import main
code = main()
print("imported:", sys.argv[1:] == ["--help"] and {module!r} in sys.modules, file=sys.stderr)
sys.exit(code)
"""


class CommandKit:
    """Tests of a command; subclass it in a test file under a name that begins with ``Test``."""

    command: Command
    """The descriptor."""
    allowed: Sequence[Sequence[str]] = ()
    """Words after the command's name with which it succeeds."""
    refused: Sequence[Sequence[str]] = (("--no-option-is-called-so",),)
    """Words that are bad input."""
    seconds = 60.0
    """What one command line may take."""

    def test_it_is_on_the_board(self) -> None:
        found = board_with("command", self.command).registry("command").get(self.command.name)
        assert found == self.command
        words = self.command.name.split()
        assert words and all(re.fullmatch(r"[a-z][a-z0-9-]*", word) for word in words), (
            f"{self.command.name!r} is no words of small letters, digits and hyphens"
        )

    def test_the_help_of_pegboard_names_it_and_imports_nothing_of_it(self) -> None:
        text = self.command.help
        assert text.strip() == text and text and "\n" not in text, f"help is no line: {text!r}"
        shown = self._run("--help")
        assert any(
            line.split() == [*self.command.name.split(), *text.split()]
            for line in shown.stdout.splitlines()
        ), shown.stdout
        assert "imported: False" in shown.stderr, f"--help imports {self.command.app}"

    def test_its_own_help_succeeds(self) -> None:
        shown = self._run(*self.command.name.split(), "--help")
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip(), "its help is empty"

    def test_what_it_is_for_succeeds(self) -> None:
        for words in self.allowed:
            done = self._run(*self.command.name.split(), *words)
            assert done.returncode == 0, f"{words}: exit code {done.returncode}\n{done.stderr}"

    def test_bad_input_is_refused_without_a_traceback(self) -> None:
        for words in self.refused:
            done = self._run(*self.command.name.split(), *words)
            assert done.returncode == 2, f"{words}: exit code {done.returncode} and not 2"
            said = done.stderr.replace("imported: False", "").strip()
            assert said and "Traceback" not in said, f"{words}: {said or 'no word of why'}"

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        start = _START.format(module=str(self.command.app).partition(":")[0])
        return subprocess.run(
            [sys.executable, "-c", start, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=self.seconds,
            stdin=subprocess.DEVNULL,
        )
