"""What the server needs of an engine; `pegboard.AsyncLLM` has it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from pegboard import EngineConfig, RequestOutput, SamplingParams
from pegboard.api.tokenizer import TextTokenizer

__all__ = ["Engine", "Moment", "Stream", "Take"]


class Moment(Protocol):
    """A request's state at one time, of which more than the text is made only if it is wanted."""

    @property
    def text(self) -> str | None:
        """Of a single sequence that goes on; None of all others."""
        ...

    @property
    def shown(self) -> int:
        """How many of its tokens the text shows."""
        ...

    def output(self) -> RequestOutput: ...


Take = Callable[[Moment], Awaitable[None] | None]


class Stream(Protocol):
    """The states of one request, each whole; a slow reader may miss some, not the last."""

    def __aiter__(self) -> AsyncIterator[RequestOutput]: ...

    async def __anext__(self) -> RequestOutput: ...

    async def feed(self, take: Take) -> None:
        """In place of iterating: `take` gets each state at once where it arrives, outside of any
        task, and the next one after what it returned, if anything, was awaited."""
        ...

    def close(self) -> None:
        """Drop the request, if it has not ended."""
        ...


class Engine(Protocol):
    """A running engine. All methods are called in the event loop and must not block it."""

    @property
    def board(self) -> Any:
        """The plugins: registries, provenance, settings."""
        ...

    @property
    def config(self) -> EngineConfig: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def num_live_requests(self) -> int: ...

    @property
    def silent_for(self) -> float:
        """Seconds since the engine told anything, while it has work."""
        ...

    @property
    def is_paused(self) -> bool: ...

    def pause(self) -> None:
        """Hold back requests that come from now on."""
        ...

    def resume(self) -> None:
        """Let in what was held back."""
        ...

    async def add(
        self,
        prompt: Any,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Stream:
        """Queue a request. Raises `RequestError` or `ResourceError` for what is not allowed and
        `EngineDeadError` without an engine."""
        ...

    async def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        chat_template: str | None = None,
        **options: Any,
    ) -> Any:
        """A conversation as a tokenised prompt, with ``ids`` and ``text``."""
        ...

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Raises `RequestError` for one that no context could hold."""
        ...

    async def abort(self, request_ids: str | Iterable[str]) -> None: ...

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if no request can be served any more."""
        ...

    async def reset_prefix_cache(self) -> bool: ...

    async def sleep(self, level: Any, mode: str) -> None:
        """Give memory back. Raises `UnsupportedError` where it cannot be, `RequestError` for other
        levels than 1 and 2 and other modes than ``"abort"`` and ``"wait"``."""
        ...

    async def wake_up(self, tags: Sequence[str] | None) -> None:
        """Take it again. Raises `RequestError` for other tags than ``"weights"`` and
        ``"kv_cache"``."""
        ...

    async def is_sleeping(self) -> bool: ...

    async def start_profile(self) -> None:
        """Raises `UnsupportedError` where none can be recorded, `RequestError` if one is."""
        ...

    async def stop_profile(self) -> str:
        """The path of what was recorded."""
        ...

    def get_tokenizer(self) -> TextTokenizer: ...

    def get_default_sampling_params(self) -> SamplingParams: ...

    def plugins(self) -> list[dict[str, Any]]: ...

    def uses(self, surface: str, names: Iterable[str]) -> None:
        """Be told what else of the board serves, for `plugins` to name it."""
        ...

    async def shutdown(self, grace: float = 0.0) -> None: ...
