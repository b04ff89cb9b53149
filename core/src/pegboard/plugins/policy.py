"""How plugins are loaded: what an operator may ask of every command and of the library."""

from __future__ import annotations

import attrs

__all__ = ["USUAL", "LoadPolicy"]


@attrs.frozen(kw_only=True)
class LoadPolicy:
    """Settings of one loading. `pegboard.config.plugin_policy` makes one from engine settings."""

    strict: bool = False
    """Every failed or incompatible plugin and every allowlist entry without a match is an error."""
    only: str | None = None
    """A further allowlist beside the variable's; None: there is none."""
    lock: str | None = None
    """Path of a file made by ``pegboard plugins lock``; what differs from it is not imported."""


USUAL = LoadPolicy()
"""What holds where nobody asks for anything."""
