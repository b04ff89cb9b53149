"""The front half of a stat logger: requests, as users see them.

Called in the front-end process, wherever that is, one call at a time but from several threads, some
of them event loops: each call must be quick, must not block, and must not call the engine. An
exception is logged once for each logger; the engine and the other loggers go on.

Each request that was taken in is told of with `added` and ends with exactly one `finished`, whether
its reader went away, its time was over, or the engine died.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs
import msgspec

from pegboard.api.metrics import PluginMetrics
from pegboard.api.params import SamplingParams

if TYPE_CHECKING:
    from pegboard.api.scheduler import SchedulerStats

__all__ = ["FrontContext", "FrontRecorder", "RequestAdded", "RequestFacts", "TokenBatch"]

_WORST_FIRST = ("error", "abort", "length")


class RequestAdded(msgspec.Struct, frozen=True):
    """A request was taken in."""

    request_id: str
    time: float
    """Seconds since the epoch."""
    prompt_tokens: int
    n: int
    """Sequences."""


class TokenBatch(msgspec.Struct, frozen=True):
    """What one message of the engine brought, of all requests together.

    Of tokens after a stop string, which no user gets, nothing is told.
    """

    streams: int
    """Sequences that got tokens."""
    tokens: int
    """Tokens that they got."""
    first: list[float]
    """Seconds from arrival to the first token of any sequence, of each request whose first it
    was."""
    intervals: list[float]
    """Seconds since the last token before, of each sequence that had some."""
    prompt_tokens: int
    """Of the requests of `first`."""
    cached_tokens: int
    """Of these, how many came from the prefix cache or from outside."""


class RequestFacts(msgspec.Struct, frozen=True):
    """A request that has ended. Times are those of the engine's monotonic clock, in seconds; a
    phase that it did not reach is None."""

    request_id: str
    arrival: float
    """Seconds since the epoch."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that came from the prefix cache or from outside."""
    generated: tuple[int, ...]
    """Tokens of each sequence."""
    reasons: tuple[str, ...]
    """The finish reason of each sequence: ``"stop"``, ``"length"``, ``"abort"`` or ``"error"``."""
    max_tokens: int
    """The most that each sequence could get."""
    params: SamplingParams
    seconds: float
    """From arrival to the end, as the front end saw it."""
    first_token: float | None
    """From arrival to the first token of any sequence."""
    queue: float | None
    """From taken in by the scheduler to running."""
    prefill: float | None
    """From running to the first token, preemptions included."""
    decode: float | None
    """From the first token to the last of any sequence, preemptions included."""
    preemptions: int
    trace_headers: Mapping[str, str] = {}
    """``traceparent`` and ``tracestate`` of whoever asked; see `pegboard.AsyncLLM.add`."""

    @property
    def reason(self) -> str:
        """The finish reason of the whole: the worst of its sequences'."""
        return next((reason for reason in _WORST_FIRST if reason in self.reasons), "stop")


@attrs.frozen
class FrontContext:
    """What the front half of a logger is opened with."""

    model: str
    """As the user named it."""
    config: Any
    """`pegboard.EngineConfig`."""
    num_blocks: int
    """KV blocks, the null block included."""
    max_model_len: int
    """Longest prompt plus output, in tokens."""
    rank: int = 0
    """Number of this engine among those that share one configuration."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class FrontRecorder(Protocol):
    """The front half of an open logger. Endpoints find it as ``engine.recorders[name]``."""

    def added(self, request: RequestAdded) -> None:
        """A request was taken in."""
        ...

    def tokens(self, batch: TokenBatch) -> None:
        """A message of the engine brought tokens. Called up to once a step."""
        ...

    def finished(self, facts: RequestFacts) -> None:
        """A request has ended, after its last `tokens`."""
        ...

    def scheduler(self, stats: SchedulerStats) -> None:
        """How the scheduler stands: every 0.1 s while it works, and at the end of work."""
        ...

    def close(self) -> None:
        """Write what is left, within a second or two. Called once, after all requests have
        ended."""
        ...
