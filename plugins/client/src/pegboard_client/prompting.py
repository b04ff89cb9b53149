"""Reading what a person types, or what a pipe brings."""

from __future__ import annotations

import sys
from collections.abc import Callable

from pegboard.errors import ConfigError

__all__ = ["FENCE", "Reader"]

FENCE = '"""'
"""Stands alone before and after a text of several lines."""


class Reader:
    """Texts, one at a time. A line that ends with a backslash goes on in the next one; between two
    lines that hold `FENCE` alone, all lines are one text."""

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self._ask: Callable[[str], str] = input
        if self.interactive:
            _edit_lines()

    def read(self) -> str | None:
        """The next text that is not empty; None at the end, which is also where a
        second interrupt comes on a terminal. Raises `ConfigError` for what is no text."""
        try:
            return self._read_again() if self.interactive else self._next()
        except UnicodeDecodeError as error:
            raise ConfigError(f"standard input is no text: {error}") from error

    def _read_again(self) -> str | None:
        try:
            try:
                return self._next()
            except KeyboardInterrupt:
                print("\n(Ctrl-C again, Ctrl-D or /quit leaves)", flush=True)
                return self._next()
        except KeyboardInterrupt:  # the second, also where it comes before the prompt is back
            print(flush=True)
            return None

    def _next(self) -> str | None:
        while True:
            try:
                text = self._text()
            except EOFError:
                if self.interactive:
                    print(flush=True)
                return None
            if text.strip():
                return text

    def _text(self) -> str:
        line = self._line("> ")
        if line.strip() == FENCE:
            return "\n".join(self._until_fence())
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1]
            lines.append(self._line(". "))
        return "\n".join(lines)

    def _until_fence(self) -> list[str]:
        lines: list[str] = []
        while True:
            try:
                line = self._line(". ")
            except EOFError:
                return lines
            if line.strip() == FENCE:
                return lines
            lines.append(line)

    def _line(self, prompt: str) -> str:
        return self._ask(prompt if self.interactive else "")


def _edit_lines() -> None:
    """Let lines be edited and found again, where the system has a library for that."""
    try:
        import readline  # noqa: F401  # importing it is all that `input` needs
    except ImportError:
        return
