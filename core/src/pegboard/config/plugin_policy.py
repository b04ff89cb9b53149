"""From engine settings to how plugins are loaded."""

from __future__ import annotations

from pegboard.config.engine import EngineConfig
from pegboard.plugins.policy import LoadPolicy

__all__ = ["policy_of"]


def policy_of(config: EngineConfig) -> LoadPolicy:
    """The same in every process of an engine."""
    return LoadPolicy(
        strict=config.strict_plugins,
        only=config.no_plugins_except,
        lock=config.plugins_lock,
        plugin_config=config.plugin_config,
        unsafe=config.unsafe_plugins,
    )
