"""What a hook may ask of the board while it registers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import attrs

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    import logging

__all__ = ["ROLES", "PluginContext", "ProcessRole"]

ProcessRole = Literal["front", "engine", "worker"]
"""Where code runs: the process that takes requests, the one that plans steps, or one that holds a
device."""

ROLES: tuple[ProcessRole, ...] = ("front", "engine", "worker")
"""All of them, which an engine in one process has at once."""


def _roles(given: ProcessRole | Iterable[ProcessRole]) -> tuple[ProcessRole, ...]:
    """One role or several, in the order of `ROLES`."""
    wanted = {given} if isinstance(given, str) else set(given)
    return tuple(role for role in ROLES if role in wanted)


@attrs.frozen
class PluginContext:
    """Handed to each hook: who the plugin is and where it runs."""

    plugin_id: str
    """Entry-point name of the plugin that is being asked."""
    distribution: str
    """Distribution that installed it, in normal form."""
    version: str
    roles: tuple[ProcessRole, ...] = attrs.field(converter=_roles)
    """What this process is."""
    core_version: str
    settings: Any = None
    """An instance of the class that the plugin's hook `pegboard_settings` returned; None in that
    hook, and without it."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's namespace of metrics."""

    @property
    def logger(self) -> logging.Logger:
        """A logger under the engine's tree, named after the plugin."""
        import logging  # few ask for it, and start-up must be quick

        return logging.getLogger(f"pegboard.plugin.{self.plugin_id}")
