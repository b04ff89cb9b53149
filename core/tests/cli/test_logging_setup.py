"""The log: human on a terminal, JSON lines otherwise."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from pegboard.errors import ConfigError
from pegboard.logging import get_logger, setup_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    root = logging.getLogger("pegboard")
    state = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.propagate = state[0], state[2]
    root.setLevel(state[1])


def test_a_file_gets_one_json_object_per_event() -> None:
    stream = io.StringIO()
    setup_logging(environ={}, stream=stream)
    get_logger("pegboard.engine").bind(step=3).info("planned 100%", tokens=7, name="x")
    logging.getLogger("pegboard.plugin.acme").warning("value %d", 5)
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("timestamp").startswith("20")
    assert first == {
        "event": "planned 100%",
        "level": "info",
        "logger": "pegboard.engine",
        "step": 3,
        "tokens": 7,
        "name": "x",
    }
    assert second["event"] == "value 5" and second["logger"] == "pegboard.plugin.acme"


def test_a_terminal_gets_a_line_for_people() -> None:
    stream = Terminal()
    setup_logging(environ={}, stream=stream)
    get_logger("pegboard.engine").warning("low memory", free=12)
    line = stream.getvalue()
    assert "low memory" in line and "free" in line and not line.startswith("{")


def test_the_level_is_that_of_the_variable() -> None:
    stream = io.StringIO()
    setup_logging(environ={"PEGBOARD_LOG_LEVEL": " error "}, stream=stream)
    log = get_logger("outside")
    log.warning("hidden")
    log.error("shown")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["shown"]
    assert json.loads(stream.getvalue())["logger"] == "pegboard.outside"


def test_an_unknown_level_is_refused_with_the_allowed_ones() -> None:
    with pytest.raises(ConfigError, match="PEGBOARD_LOG_LEVEL is 'loud'; allowed are DEBUG, INFO"):
        setup_logging(environ={"PEGBOARD_LOG_LEVEL": "loud"})


def test_a_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(environ={}, stream=first)
    setup_logging(environ={}, stream=second)
    get_logger("x").info("once")
    assert first.getvalue() == "" and second.getvalue().count("once") == 1


def test_an_exception_is_logged_with_its_traceback() -> None:
    stream = io.StringIO()
    setup_logging(environ={}, stream=stream)
    try:
        raise OSError("disk gone")
    except OSError:
        get_logger("x").exception("write failed")
    assert "disk gone" in json.loads(stream.getvalue())["exception"]


def test_structlog_is_imported_with_the_first_record_only() -> None:
    code = (
        "import sys, io; from pegboard.logging import get_logger, setup_logging\n"
        "setup_logging(environ={}, stream=io.StringIO())\n"
        "get_logger('x').debug('hidden'); print('structlog' in sys.modules)\n"
        "get_logger('x').info('shown'); print('structlog' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
