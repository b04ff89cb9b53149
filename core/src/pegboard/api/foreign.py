"""Plugins that were made for another program, and what a plugin of ours needs to run them.

Another program has an entry-point group and rules of its own. A plugin that runs what is in that
group is its *adopter*. Its distribution says so in a second entry point, which nobody imports to
find out, and its module has the hook `pegboard_adopt`::

    [project.entry-points."pegboard.plugins"]
    charity = "pegboard_charity"

    [project.entry-points."pegboard.adopters"]
    "other_program.plugins" = "pegboard_charity"

From then on each entry point of that group is a plugin like any other: the allowlist judges it, and
nothing of it is imported before; listing, locks and provenance show its own distribution; it fails
alone. It loads if its adopter does, after it, and in the same processes. Of the other program
itself, whose name the group begins with, its requirements are taken as met.
"""

from __future__ import annotations

import attrs

from pegboard.errors import PluginError

__all__ = ["ADOPT_HOOK", "ForeignPlugin", "NotAdoptedError"]

ADOPT_HOOK = "pegboard_adopt"
"""The hook that is called for each of these plugins; it belongs to no surface."""


@attrs.frozen
class ForeignPlugin:
    """One entry point of the other program's group. Nothing of it has been imported."""

    name: str
    group: str
    value: str
    """What it refers to, as that program writes it: ``"module"`` or ``"module:attribute"``."""
    distribution: str
    """In normal form."""
    version: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


class NotAdoptedError(PluginError):
    """Raised by an adopter for a plugin that is none of its business, for example because the other
    program is installed too. The plugin is shown as ``unused`` with this message, which is no
    failure; equal messages are told once."""
