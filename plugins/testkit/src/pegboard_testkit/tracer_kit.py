"""Conformance kit for the surface *tracer*.

A test file of a tracer subclasses `TracerKit` and names the descriptor; the plugin must be
installed::

    class TestMyTracer(TracerKit):
        tracer = MY_TRACER
        endpoint = "http://127.0.0.1:9"
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pegboard import LLM, SamplingParams
from pegboard.api.tracer import RequestTracer, Tracer, TracerContext
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.own_settings import OwnSettings
from pegboard_testkit.told import NULL_ENGINE, ended_in_all_ways

__all__ = ["TracerKit"]

_QUICK = 0.002
"""Seconds for a request, some twenty times what it should take."""
_LAST_WORDS = 4.0


class TracerKit(OwnSettings):
    """Tests of a tracer; subclass it in a test file under a name that begins with ``Test``."""

    tracer: Tracer
    """The descriptor."""
    endpoint: str | None = None
    """Where nobody needs to listen."""
    options: Mapping[str, Any] = {}
    """Further options of the engine that it is tried in."""

    def test_it_takes_requests_that_ended_in_any_way_quickly(self) -> None:
        opened, told, rounds = self._opened(), ended_in_all_ways(), 20
        started = time.process_time()
        for _ in range(rounds):
            for facts in told:
                opened.finished(facts)
        spent = (time.process_time() - started) / rounds / len(told)
        opened.close()
        assert spent < _QUICK, f"{spent * 1e6:.0f} µs for a request"

    def test_closing_does_not_wait_for_whoever_does_not_listen(self) -> None:
        opened = self._opened()
        opened.finished(ended_in_all_ways()[0])
        started = time.monotonic()
        opened.close()
        assert time.monotonic() - started < _LAST_WORDS, "it takes too long to close"

    def test_it_serves_in_an_engine(self, tmp_path: Path) -> None:
        options = {**NULL_ENGINE, **self.options, "tracer": self.tracer.name}
        options["otlp_traces_endpoint"] = self.endpoint
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        board = board_with("tracer", self.tracer, settings=self.settings)
        with LLM(str(write_tiny_model(tmp_path)), board=board, **options) as llm:
            (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
            (used,) = [row["used"] for row in llm.plugins() if self._name in (row["used"] or ())]
        assert len(output.outputs[0].token_ids) == 5 and self._name in used

    @property
    def _name(self) -> str:
        return f"tracer:{self.tracer.name}"

    def _opened(self) -> RequestTracer:
        own = self.handed("tracer", self.tracer.name)
        context = TracerContext("m", self.endpoint, **own)
        opened: RequestTracer = self.tracer.open.load()(context)
        return opened
