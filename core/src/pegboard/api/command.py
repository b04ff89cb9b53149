"""Surface *command*: a sub-command of ``pegboard``.

Called by: the command line, in the front-end process. The help text is in the descriptor so that
``pegboard --help`` imports nothing; `run` is imported when the command is used.
"""

from __future__ import annotations

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref

__all__ = ["Command"]


@attrs.frozen
class Command:
    """One sub-command. `app` refers to a ``typer.Typer`` or a plain function with typer
    annotations."""

    name: str
    help: str
    app: LazyRef = attrs.field(converter=lazy_ref)

    def claims(self) -> tuple[str, ...]:
        return ()
