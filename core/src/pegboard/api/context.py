"""What a hook may ask of the board while it registers."""

from __future__ import annotations

import logging
from typing import Any, Literal

import attrs

__all__ = ["PluginContext", "ProcessRole"]

ProcessRole = Literal["front", "engine", "worker"]
"""Where code runs: the process that takes requests, the one that plans steps, or one that holds a
device."""


@attrs.frozen
class PluginContext:
    """Handed to each hook: who the plugin is and where it runs."""

    plugin_id: str
    """Entry-point name of the plugin that is being asked."""
    distribution: str
    """Distribution that installed it, in normal form."""
    version: str
    role: ProcessRole
    core_version: str
    settings: Any = None
    """An instance of the class that the plugin's hook `pegboard_settings` returned; None in that
    hook, and without it."""

    @property
    def logger(self) -> logging.Logger:
        """A logger under the engine's tree, named after the plugin."""
        return logging.getLogger(f"pegboard.plugin.{self.plugin_id}")
