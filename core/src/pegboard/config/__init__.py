"""Settings: frozen attrs classes, checked when they are made."""

from __future__ import annotations

from pegboard.config.engine import EngineConfig

__all__ = ["EngineConfig"]
