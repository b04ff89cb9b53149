"""How plugins are loaded: what an operator may ask of every command and of the library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
    plugin_config: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """By plugin id, the values of its settings by name."""
    unsafe: bool = False
    """A plugin may replace parts of the core; else that is a failure, and undone."""


USUAL = LoadPolicy()
"""What holds where nobody asks for anything."""
