"""The conformance kit of endpoints."""

from __future__ import annotations

from pegboard.testing.boards import board_of
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_webui.page import read_assets


class TestPage(EndpointKit):
    endpoint = board_of("webui").require("endpoint", "webui", wanted_by="its tests")
    public = frozenset(asset.path for asset in read_assets())
