"""What tests of the KV connector in the scheduler share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pegboard.testing.scripted_connector import Script
from pegboard.testing.toy_engine import ToyEngine, toy_request


@pytest.fixture
def filled(make: Callable[..., ToyEngine], request: pytest.FixtureRequest) -> Script:
    """A script whose store has the six whole blocks of the module's ``PROMPT``; `make` is the
    module's own, too."""
    prompt: list[int] = request.module.PROMPT
    script = Script()
    engine = make(script)
    engine.add(toy_request("first", prompt, 1))
    engine.run()
    assert len(script.store) == 6
    return script
