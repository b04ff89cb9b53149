"""Surface *command*: a sub-command of ``pegboard``.

Called by: the command line, in the front-end process. The help text is in the descriptor so that
``pegboard --help`` imports nothing; `app` is imported when the command is used.

A name of two words puts the command into a group: ``"bench serve"`` is run by ``pegboard bench
serve`` and listed by ``pegboard bench --help``, beside those of the core and of other plugins. A
name that two plugins use, or that the core has, is an error that names both.
"""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.errors import PluginError

__all__ = ["Command"]


@attrs.frozen
class Command:
    """One sub-command. `app` refers to a ``typer.Typer`` or a plain function with typer
    annotations."""

    name: str = attrs.field()
    """One word, or a group and a word; a word begins with no hyphen."""
    help: str
    """A few words for the list of commands."""
    app: LazyRef = attrs.field(converter=lazy_ref)

    @name.validator
    def _check_name(self, _: Any, value: str) -> None:
        words = value.split()
        regular = " ".join(words) == value and not any(word.startswith("-") for word in words)
        if not regular or len(words) not in (1, 2):
            raise PluginError(
                f"command name {value!r} is not allowed: one word, or two with a space between, "
                "that begin with no hyphen"
            )

    def claims(self) -> tuple[str, ...]:
        return ()
