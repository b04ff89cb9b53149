"""What the board makes of the plugin."""

from __future__ import annotations

from pegboard_testkit.plugin_kit import PluginKit


class TestClient(PluginKit):
    plugin = "client"
