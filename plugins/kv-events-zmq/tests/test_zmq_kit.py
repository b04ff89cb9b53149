"""The conformance kit of publishers."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from pegboard.testing.boards import board_of
from pegboard_testkit.events_kit import EventsKit


class TestZmq(EventsKit):
    publisher = board_of("kv-events-zmq").require("events", "zmq", wanted_by="its tests")
    refused = ({"endpoint": 3}, {"endpoint": "nowhere://at all"}, {"hwm": -1})

    @pytest.fixture
    def options(self) -> Iterator[Mapping[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="kv") as folder:  # short enough for a socket
            yield {"endpoint": f"ipc://{folder}/live"}
