"""What is known about each installed plugin:

the candidate before a decision, the record after it.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import attrs

from pegboard.api.context import ROLES

__all__ = [
    "ADOPTERS",
    "CORE_DISTRIBUTION",
    "GROUPS",
    "GROUP_OF_SURFACE",
    "Candidate",
    "PluginRecord",
    "PluginState",
    "Registration",
    "normal_form",
]

CORE_DISTRIBUTION = "pegboard-core"

GROUPS = (
    "pegboard.attention",
    "pegboard.connectors",
    "pegboard.models",
    "pegboard.platforms",
    "pegboard.plugins",
    "pegboard.quant",
)
"""Entry-point groups. A plugin may register into any surface, whatever its group."""

ADOPTERS = "pegboard.adopters"
"""Entry-point group that says whose plugins a plugin runs: the name of an entry is a group of
another program, the value is the module of a plugin of the same distribution."""

GROUP_OF_SURFACE = MappingProxyType(
    {
        "attention": "pegboard.attention",
        "connector": "pegboard.connectors",
        "model": "pegboard.models",
        "platform": "pegboard.platforms",
        "quant": "pegboard.quant",
    }
)
"""Where a provider of a surface is looked for first;

the other surfaces have no group of their own.
"""

PluginState = Literal["ready", "blocked", "incompatible", "failed", "shadowed", "unused"]
"""What became of a plugin.

``ready``: registered. ``blocked``: left out by the allowlist, never imported. ``incompatible``:
wrong or missing API level, never imported. ``failed``: broke a rule while loading and was rolled
back. ``shadowed``: loaded, and everything that it registered is overridden by another plugin.
``unused``: it declares that it is not for this process, never imported; or it was made for another
program and is left alone.
"""


def normal_form(distribution: str) -> str:
    """Distribution name in the normal form of packaging:

    lower case, runs of ``-_.`` become ``-``.
    """
    return re.sub(r"[-_.]+", "-", distribution).lower()


class Candidate(NamedTuple):
    """One entry point in one of our groups, or in one that a plugin adopts; nothing of it is
    imported yet."""

    id: str
    """Entry-point name."""
    group: str
    """Full group name, e.g. ``"pegboard.models"``."""
    value: str
    """What the entry point refers to; must be a module, but for adopted plugins."""
    distribution: str
    """In normal form."""
    version: str
    requires: tuple[str, ...] = ()
    """The distribution's ``Requires-Dist`` lines."""
    adopter: Candidate | None = None
    """The plugin that runs this one, which was made for another program; None for our own."""

    @property
    def short_group(self) -> str:
        return self.group.rpartition(".")[2]

    @property
    def qualified(self) -> str:
        """``"models:llama"``: unambiguous in the allowlist."""
        return f"{self.short_group}:{self.id}"

    def __str__(self) -> str:
        return f"{self.qualified} of {self.distribution} {self.version}"


class Registration(NamedTuple):
    """One descriptor that a plugin put on the board."""

    surface: str
    name: str
    claims: tuple[str, ...] = ()


@attrs.frozen
class PluginRecord:
    """One plugin after loading: where it came from, what became of it and why."""

    id: str
    """Entry-point name; unique among admitted plugins."""
    group: str
    module: str
    distribution: str
    """In normal form."""
    version: str
    state: PluginState
    reason: str = ""
    """Why the state is not ``ready``, with the remedy; else empty."""
    surfaces: tuple[str, ...] = ()
    """Surfaces that the plugin declares in ``PEGBOARD_API``, sorted."""
    registered: tuple[Registration, ...] = ()
    import_seconds: float = 0.0
    """Wall time of importing its module and calling its hooks; 0 if it was not imported."""
    notes: tuple[str, ...] = ()
    """Warnings that do not stop it."""
    processes: tuple[str, ...] = ROLES
    """Where it declares to be loaded."""

    @property
    def qualified(self) -> str:
        """``"models:llama"``: unambiguous in the allowlist."""
        return f"{self.group.rpartition('.')[2]}:{self.id}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; the import time in milliseconds."""
        plain = attrs.asdict(self, recurse=False)
        plain["registered"] = [item._asdict() for item in self.registered]
        plain["import_time_ms"] = round(1000 * plain.pop("import_seconds"), 3)
        return plain

    def __str__(self) -> str:
        return f"{self.qualified} of {self.distribution} {self.version}"
