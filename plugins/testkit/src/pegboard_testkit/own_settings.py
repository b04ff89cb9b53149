"""The settings that a kit hands to the plugin under test, as the engine would."""

from __future__ import annotations

from typing import Any

from pegboard.testing.boards import with_settings
from pegboard.testing.toy_connected import installed_board

__all__ = ["OwnSettings"]


class OwnSettings:
    """What kits have whose surface hands settings to a plugin."""

    settings: Any = None
    """Settings that the plugin is tried with: an instance of the class that its hook
    `pegboard_settings` returns. None: what it declares, with all defaults, for which it must be
    installed."""
    _handed: dict[str, Any] | None = None
    """By class, what `handed` gives: looking at all that is installed takes a while."""

    def handed(self, surface: str, name: str) -> dict[str, Any]:
        """`settings` and `metrics` of the context objects that the surface hands to the plugin that
        registered `name`."""
        kit = type(self)
        if kit.__dict__.get("_handed") is None:
            kit._handed = self._looked_up(surface, name)
        return dict(kit._handed or {})

    def _looked_up(self, surface: str, name: str) -> dict[str, Any]:
        board = installed_board()
        if self.settings is not None and name in board.registry(surface):
            board = with_settings(board, surface, [name], self.settings)
        return {**board.handed(surface, name), **self._given()}

    def _given(self) -> dict[str, Any]:
        return {} if self.settings is None else {"settings": self.settings}
