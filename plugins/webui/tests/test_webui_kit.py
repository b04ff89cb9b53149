"""The conformance kit of the plugin's routes."""

from __future__ import annotations

from pegboard.testing.boards import board_of
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_webui.page import read_assets


class TestPage(EndpointKit):
    endpoint = board_of("webui").require("endpoint", "webui", wanted_by="its tests")
    public = tuple(asset.path for asset in read_assets())
