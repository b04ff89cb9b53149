"""Parsing for the commands that must start quickly, with the nearest spelling in errors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from pegboard.plugins.nearest import nearest

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about an unknown option names the nearest one."""

    def __init__(self, **settings: Any) -> None:
        """`settings` are argparse's own."""
        self._names: list[str] = []
        # A fixed width: to find the terminal's, argparse would import shutil, even without --help.
        layout = partial(argparse.HelpFormatter, width=100)
        super().__init__(**{"formatter_class": layout, "allow_abbrev": False, **settings})

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        """As argparse's, and remembered."""
        self._names += (name for name in names if name.startswith("--"))
        return super().add_argument(*names, **settings)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """The options; otherwise a message and `SystemExit`."""
        options, unknown = self.parse_known_args(words)
        if unknown:
            word = unknown[0]
            near = nearest(word.partition("=")[0], self._names) if word.startswith("-") else None
            hint = f"; did you mean {near!r}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return options
