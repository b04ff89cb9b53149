"""`AsyncLLM`: a model in a process of its own, for many requests at once from event loops."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from pegboard.api.events import PublisherStats
from pegboard.api.metrics import MetricReading
from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.stat_logger_front import FrontRecorder
from pegboard.api.tokenizer import TextTokenizer
from pegboard.config.engine import EngineConfig
from pegboard.engine.dispatch import Dispatcher
from pegboard.engine.front import Conversation, load_front
from pegboard.engine.ids import check_deadline, check_id, checked_headers, listed_ids
from pegboard.engine.inputs import Prompt, TokenisedPrompt
from pegboard.engine.open_watch import (
    decide_observers,
    engine_half,
    open_watch,
    used_observers,
)
from pegboard.engine.output_processor import OutputProcessor
from pegboard.engine.outputs import RequestOutput
from pegboard.engine.process_client import ProcessClient
from pegboard.engine.sleep import check_level, check_mode, check_tags
from pegboard.engine.streams import Post, Stream
from pegboard.engine.templates import template_variables
from pegboard.engine.trim import give_back
from pegboard.errors import EngineDeadError
from pegboard.plugins import Board

__all__ = ["AsyncLLM"]

_LONG_TEXT = 2000
"""Characters from which on a prompt is tokenised beside the event loop."""
_TEXT_THREADS = 2
_SLEEP = "sleep"
"""Why requests are held back."""
_LOOK = 0.02
"""Seconds between two looks at what must end before sleep."""

Progress = Callable[[int, int], Any]
T = TypeVar("T")


class AsyncLLM:
    """A language model that answers many requests at once, without blocking an event loop.

    The engine has a process of its own, so that neither side waits for the other. Several event
    loops and threads may use one model. Making one blocks until the engine is built; call `close`,
    or await `shutdown`, when it is not needed any more. Arguments and errors are those of `LLM`;
    `EngineDeadError` says that the process ended.
    """

    def __init__(
        self, model: str | os.PathLike[str], *, progress: Progress | None = None, **options: Any
    ) -> None:
        self._start(EngineConfig.from_options({"model": model, **options}), progress)

    @classmethod
    def from_config(cls, config: EngineConfig, *, progress: Progress | None = None) -> AsyncLLM:
        """The same from settings that were checked."""
        made = cls.__new__(cls)
        made._start(config, progress)
        return made

    def _start(self, config: EngineConfig, progress: Progress | None) -> None:
        self._front = load_front(config)
        board = self._front.board
        self.config = config = decide_observers(board, config, serving=True)
        self.client = ProcessClient(engine_half(board, config), board.plan, progress=progress)
        with ExitStack() as undo:
            undo.callback(self.client.close)
            blocks, room = self.client.ready.blocks, self.max_model_len
            self._watch = open_watch(board, config, num_blocks=blocks, max_model_len=room)
            undo.pop_all()
        outputs = OutputProcessor(self._front.tokenizer, config.stream_interval, self._watch)
        self._requests = Dispatcher(self.client, outputs, self._watch)
        self.client.what_runs = self._requests.describe
        self._pool = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="pegboard-text")
        self._posts: WeakValueDictionary[asyncio.AbstractEventLoop, Post] = WeakValueDictionary()
        self._names = map(str, itertools.count())
        self._serial = itertools.count()

    async def generate(
        self,
        prompt: Prompt | TokenisedPrompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Answer one prompt, yielding its state as it grows, and at the end.

        Each state is a copy of its own; a reader that is slow finds the latest one. Where the
        reader goes away, by cancellation or by closing the generator, the request is dropped within
        a step. A request that takes longer than `deadline` seconds ends with the finish reason
        ``"abort"`` and the stop reason ``"deadline"``. Of `trace_headers`, ``traceparent`` and
        ``tracestate`` say which trace it belongs to.

        Raises `RequestError` or `ResourceError` for what is not allowed, and `EngineDeadError` if
        there is no engine any more.
        """
        stream = await self.add(
            prompt,
            sampling_params,
            request_id,
            priority=priority,
            deadline=deadline,
            trace_headers=trace_headers,
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def add(
        self,
        prompt: Prompt | TokenisedPrompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Stream:
        """Queue a request, as `generate` does, and return its states as an asynchronous iterator,
        whose ``close()`` drops the request."""
        if request_id is not None:
            check_id(request_id)
        check_deadline(deadline)
        headers = checked_headers(trace_headers)
        self._requests.check()
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        inputs = self._front.inputs
        inputs.check_params(params)
        tokens = await self._tokenise(prompt)
        requests = inputs.requests(str(next(self._serial)), tokens, params, priority=priority)
        name = self._free_name() if request_id is None else request_id
        stream = Stream(name, self._post(), self._requests.cancel)
        self._requests.add(stream, tokens, params, requests, headers)
        if deadline is not None:
            stream.limit(deadline, self._requests.expire)
        return stream

    async def chat(
        self,
        messages: Conversation,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        trace_headers: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[RequestOutput]:
        """Answer a conversation, as `generate` does; `options` are those of
        `apply_chat_template`."""
        variables = template_variables(chat_template_kwargs)
        merged = {**options, **variables}
        prompt = await self.apply_chat_template(messages, chat_template, **merged)
        async for output in self.generate(
            prompt,
            sampling_params,
            request_id,
            priority=priority,
            deadline=deadline,
            trace_headers=trace_headers,
        ):
            yield output

    async def apply_chat_template(
        self, messages: Conversation, chat_template: str | None = None, **options: Any
    ) -> TokenisedPrompt:
        """Render a conversation and tokenise it, beside the event loop; `options` as in
        `LLM.chat`."""
        options.setdefault("add_generation_prompt", not options.get("continue_final_message"))
        return await self._beside(
            lambda: self._front.apply_chat_template(messages, chat_template, **options), _length
        )

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, beside the event loop. It may be longer than the context, but a
        `RequestError` refuses one that could not fit however well tokens cover it."""
        self._front.inputs.check_length(text)
        tokenizer = self.get_tokenizer()
        return await self._beside(lambda: tokenizer.encode(text, add_special_tokens), len)

    async def abort(self, request_ids: str | Iterable[str]) -> None:
        """End requests with what there is, and the finish reason ``"abort"``; unknown ids are
        ignored."""
        self._requests.end(listed_ids(request_ids))

    def pause(self) -> None:
        """Hold back requests that come from now on; those that run go on."""
        self._requests.check()
        self._requests.pause()

    def resume(self) -> None:
        """Let in what was held back."""
        self._requests.check()
        self._requests.resume()

    @property
    def is_paused(self) -> bool:
        return self._requests.paused

    async def stats(self) -> SchedulerStats:
        """Of this moment; `latest_stats` costs nothing."""
        found: SchedulerStats = await self._call("stats")
        return found

    @property
    def latest_stats(self) -> SchedulerStats:
        """What the engine told last: at most 0.1 s old while it works."""
        return self._requests.stats

    @property
    def num_live_requests(self) -> int:
        """Requests that have not ended, those that are held back included."""
        return self._requests.live

    async def kv_event_stats(self) -> PublisherStats:
        """Batches of KV events that were published, dropped, and are queued."""
        found: PublisherStats = await self._call("kv_event_stats")
        return found

    async def plugin_metrics(self) -> dict[str, list[MetricReading]]:
        """What plugins count: ``"front"``, those of this process, and ``"engine"``, those of the
        engine's. Processes of further ranks are not asked."""
        theirs: list[MetricReading] = await self._call("metrics")
        return {"front": self.board.metrics.readings(), "engine": theirs}

    @property
    def recorders(self) -> Mapping[str, FrontRecorder]:
        """The front halves of its stat loggers, by name."""
        return self._watch.recorders

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False if a running request still uses some."""
        return bool(await self._call("reset_prefix_cache"))

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Give memory back without ending the engine, as `LLM.sleep` does.

        Requests that run end with what there is; with the mode ``"wait"`` they are waited for.
        Those that come during sleep are held back until it ends. Raises `UnsupportedError`, before
        anything ends, where executor or platform cannot.
        """
        check_level(level)
        check_mode(mode)
        await self._call("check_sleep")
        self._requests.pause(_SLEEP)
        try:
            if mode == "abort":
                self._requests.end(self._requests.let_in())
            while self._requests.let_in():
                await asyncio.sleep(_LOOK)
            await self._call("sleep", level)
        finally:
            await self._resume_if_awake()

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """As `LLM.wake_up`. When all is awake, requests that were held back are let in."""
        parts = check_tags(tags)
        await self._call("wake", parts)
        await self._resume_if_awake()

    async def is_sleeping(self) -> bool:
        """Some of it sleeps."""
        return int(await self._call("sleep_level")) > 0

    async def _resume_if_awake(self) -> None:
        if not await self.is_sleeping():
            self._requests.resume(_SLEEP)

    async def start_profile(self) -> None:
        """Record what the engine's process does, with torch's profiler. Raises `UnsupportedError`
        unless ``VLLM_TORCH_PROFILER_DIR`` names a folder, and `RequestError` if it does already."""
        await self._call("start_profile")

    async def stop_profile(self) -> str:
        """End that and write it down; the path of the trace."""
        return str(await self._call("stop_profile"))

    async def check_health(self) -> None:
        """Raise `EngineDeadError` if no request can be served any more."""
        self._requests.check()

    @property
    def errored(self) -> bool:
        """The engine ended though nobody closed it."""
        return self.dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why, if it did."""
        return self._requests.dead

    @property
    def silent_for(self) -> float:
        """Seconds since the engine told anything, while it has work; see `EngineClient`."""
        return self.client.silent_for

    def get_tokenizer(self) -> TextTokenizer:
        """The model's tokeniser."""
        return self._front.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend, else the defaults of `SamplingParams`."""
        return self._front.default_params()

    @property
    def board(self) -> Board:
        """The plugins of this process."""
        return self._front.board

    @property
    def max_model_len(self) -> int:
        """Longest prompt plus output, in tokens."""
        return self._front.model.max_model_len

    def plugins(self) -> list[dict[str, Any]]:
        """As `LLM.plugins`."""
        used = {**self.client.ready.used, **self._front.used_so_far()}
        return self.board.report({**used, **used_observers(self.config)})

    def uses(self, surface: str, names: Iterable[str]) -> None:
        """Tell what else of the board serves with this engine, such as the endpoints of a server,
        for `plugins` to name it."""
        self._front.uses(surface, names)

    async def shutdown(self, grace: float = 0.0) -> None:
        """`close` beside the event loop, so that readers get their last states."""
        await asyncio.get_running_loop().run_in_executor(None, self.close, grace)

    def close(self, grace: float = 0.0) -> None:
        """Take no further requests, let those that run finish within `grace` seconds, abort the
        others, and end the engine's process. A second call does nothing, nor does one of a forked
        child."""
        self._requests.drain(grace)
        self.client.close()
        self._watch.close()
        self._pool.shutdown(wait=False)

    def _free_name(self) -> str:
        return next(name for name in self._names if not self._requests.is_live(name))

    def _post(self) -> Post:
        loop = asyncio.get_running_loop()
        post = self._posts.get(loop)
        if post is None:
            post = self._posts[loop] = Post(loop)
        return post

    async def _tokenise(self, prompt: Prompt | TokenisedPrompt) -> TokenisedPrompt:
        if isinstance(prompt, TokenisedPrompt):
            return prompt
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if isinstance(text, str) and len(text) > _LONG_TEXT:
            return await self._beside(lambda: self._front.inputs.tokenise(prompt), _length)
        return self._front.inputs.tokenise(prompt)

    async def _beside(self, work: Callable[[], T], tokens: Callable[[T], int]) -> T:
        """On a thread of its own; `tokens`: how many came of it."""
        self._requests.check()

        def tidy() -> T:
            found = work()
            give_back(tokens(found))
            return found

        return await asyncio.get_running_loop().run_in_executor(self._pool, tidy)

    async def _call(self, name: str, *values: Any) -> Any:
        self._requests.check()
        return await asyncio.wrap_future(self.client.call(name, *values))


def _length(prompt: TokenisedPrompt) -> int:
    return len(prompt.ids)
