"""What the front end's process and the engine's process say to each other, as MessagePack.

The first message goes over the pipe that ties the engine's life to its parent's; all others go over
a pair of sockets, one for each direction. Nothing is pickled, so neither side can make the other
run anything.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard import errors
from pegboard.api.events import PublisherStats
from pegboard.api.metrics_reading import MetricReading
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.errors import EngineDeadError, PegboardError, RequestError
from pegboard.plugins.plan import PluginPlan

__all__ = [
    "ANSWERS",
    "Abort",
    "Add",
    "Answer",
    "Batch",
    "Call",
    "Close",
    "Failed",
    "Finish",
    "FromEngine",
    "Problem",
    "Progress",
    "Ready",
    "Start",
    "ToEngine",
    "pack",
    "read_from_engine",
    "read_start",
    "read_to_engine",
]


class Start(msgspec.Struct):
    """All that the engine's process is told at its start."""

    config: dict[str, Any]
    """See `pegboard.config.plain`."""
    plan: PluginPlan
    """Which plugins it loads."""
    level: int
    """Of the log."""
    inbox: str
    """Address that it reads from."""
    outbox: str
    """Address that it writes to."""


class Add(msgspec.Struct, tag=True):
    """Requests that are to run."""

    requests: list[EngineRequest]


class Abort(msgspec.Struct, tag=True):
    """Requests that nobody wants any more; nothing is told of them again."""

    ids: list[str]


class Finish(msgspec.Struct, tag=True):
    """Requests whose end was found in their text."""

    ids: list[str]
    reason: str


class Call(msgspec.Struct, tag=True):
    """A question or an order; see `ANSWERS`."""

    number: int
    name: str
    values: list[Any] = []
    """Its arguments."""


class Close(msgspec.Struct, tag=True):
    """Drop everything and end."""


class Problem(msgspec.Struct):
    """An error, by the name of its class."""

    kind: str
    text: str
    field: str | None = None
    """Of a `RequestError`."""

    @classmethod
    def of(cls, error: BaseException) -> Problem:
        """Errors of other libraries are told with the name of their class."""
        kind = type(error).__name__
        if kind in errors.__all__ and isinstance(error, PegboardError):
            return cls(kind, str(error), getattr(error, "field", None))
        return cls(PegboardError.__name__, f"{kind}: {error}")

    def error(self) -> PegboardError:
        """An error of the same class and text."""
        if self.kind == RequestError.__name__:
            return RequestError(self.text, field=self.field)
        known = getattr(errors, self.kind) if self.kind in errors.__all__ else EngineDeadError
        made: PegboardError = known(self.text)
        return made


class Progress(msgspec.Struct, tag=True):
    """Bytes of weights that were loaded, and in all."""

    done: int
    total: int


class Ready(msgspec.Struct, tag=True):
    """The engine is built."""

    blocks: int
    """Of the KV cache."""
    used: dict[str, list[str]]
    """What it uses of the board: names by surface."""
    facts: dict[str, Any]
    """Those of its executor."""


class Failed(msgspec.Struct, tag=True):
    """The engine could not be built, or failed later. It says nothing after this."""

    problem: Problem


class Batch(msgspec.Struct, tag=True, omit_defaults=True):
    """What one step brought, in one message."""

    outputs: list[EngineOutput] = []
    refused: dict[str, Problem] = {}
    """By id, requests that were not taken in."""
    stats: SchedulerStats | None = None
    """Now and then, and when the work is done."""
    busy: bool = False
    """There is work left."""


class Answer(msgspec.Struct, tag=True):
    """What came of a `Call`."""

    number: int
    value: Any = None
    problem: Problem | None = None


ANSWERS: dict[str, Any] = {
    "check": type(None),
    "check_sleep": type(None),
    "facts": dict[str, Any],
    "kv_event_stats": PublisherStats,
    "metrics": list[MetricReading],
    "reset_prefix_cache": bool,
    "settle": type(None),
    "sleep": type(None),
    "sleep_level": int,
    "start_profile": type(None),
    "stop_profile": str,
    "stats": SchedulerStats,
    "wake": bool,
}
"""What may be called, with the type of the answer. ``check``: the scheduler's audit of its own
books; ``metrics``: what the plugins of the engine's process count; ``settle``: the steps in flight
are finished; ``sleep`` takes a level, ``wake`` the parts, and says whether everything is awake;
``stop_profile``: the path of what was recorded."""

_lenient = msgspec.msgpack.Encoder(enc_hook=str)
ToEngine = Add | Abort | Finish | Call | Close
FromEngine = Batch | Answer | Progress | Ready | Failed

_to_engine: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
_from_engine: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)
_start = msgspec.msgpack.Decoder(Start)


def pack(message: msgspec.Struct, *, lenient: bool = False) -> bytes:
    """A message as bytes. A value that has no form there raises `TypeError`; a `lenient` one is
    told as its text, which is good for reports only."""
    return _lenient.encode(message) if lenient else msgspec.msgpack.encode(message)


def read_start(body: bytes) -> Start:
    """The first message."""
    return _start.decode(body)


def read_to_engine(body: bytes) -> ToEngine:
    """A message that the engine's process got."""
    return _to_engine.decode(body)


def read_from_engine(body: bytes) -> FromEngine:
    """A message that the engine's process sent."""
    return _from_engine.decode(body)
