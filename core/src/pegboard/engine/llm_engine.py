"""`LLMEngine`: the engine and its front end in one process, one step at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pegboard.api.events import PublisherStats
from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import SchedulerStats
from pegboard.api.stat_logger_front import FrontRecorder
from pegboard.api.tokenizer import TextTokenizer
from pegboard.config.engine import EngineConfig
from pegboard.engine.core import EngineCore
from pegboard.engine.ids import check_id, checked_headers, listed_ids
from pegboard.engine.inputs import InputProcessor, Prompt, TokenisedPrompt
from pegboard.engine.observe import NullWatch, Watch
from pegboard.engine.output_processor import OutputProcessor
from pegboard.engine.outputs import RequestOutput
from pegboard.engine.sleep import check_level, check_tags
from pegboard.engine.turns import Turns
from pegboard.errors import EngineDeadError, RequestError

__all__ = ["LLMEngine", "Mailbox"]

Mailbox = dict[str, RequestOutput]
"""Outputs that are due and were not fetched yet, by request id."""


class LLMEngine:
    """Adds requests and steps them.

    For batches of prompts `LLM` is simpler; this class is for callers that feed requests while
    others run. Several threads may use one engine: they take turns, a step at a time. A forked
    child may not: the step thread, and perhaps the device, stay behind with its parent.
    """

    def __init__(
        self,
        core: EngineCore,
        inputs: InputProcessor,
        tokenizer: TextTokenizer | None,
        stream_interval: int = 1,
        watch: Watch | None = None,
    ) -> None:
        """`stream_interval`: as in `EngineConfig`; `watch` is told of requests, and closed
        here."""
        self._watch: Watch = watch or NullWatch()
        self.core = core
        self.inputs = inputs
        self.tokenizer = tokenizer
        self._outputs = OutputProcessor(tokenizer, stream_interval, self._watch)
        self._serial = 0
        self._fault: BaseException | None = None
        self._closed = False
        self._turns = Turns(core.shield)
        self._process = os.getpid()
        self._due: Mailbox = {}
        """For the next caller of `step`."""
        self._boxes: dict[str, Mailbox] = {}
        """Of live requests whose outputs are for `step_for`."""

    @classmethod
    def from_config(cls, config: EngineConfig, **parts: Any) -> LLMEngine:
        """Discover plugins, load the model, size the cache. `parts` as in
        `pegboard.engine.build.build_engine`."""
        from pegboard.engine.build import build_engine

        return build_engine(config, **parts).engine

    def add_request(
        self,
        request_id: str,
        prompt: Prompt | TokenisedPrompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        box: Mailbox | None = None,
        trace_headers: Mapping[str, str] | None = None,
    ) -> None:
        """Queue a request. Raises `RequestError` or `ResourceError` and then keeps nothing of it.

        A lower `priority` is served first; other than 0 only with
        ``scheduling_policy="priority"``. The outputs of a request with a `box` are put there,
        whoever steps, and fetched with `step_for`; those of others are returned by `step`.
        `trace_headers` as in `pegboard.AsyncLLM.add`.
        """
        check_id(request_id)
        headers = checked_headers(trace_headers)
        self.check_alive()
        with self._turns:
            self.check_alive()
            self._add(request_id, prompt, params, priority, headers)
            if box is not None:
                self._boxes[request_id] = box

    def step(self) -> list[RequestOutput]:
        """Run one step, unless outputs wait since another caller's step; the requests whose outputs
        are due. Raises `EngineDeadError` if the engine itself failed."""
        return self.step_for(self._due)

    def step_for(self, box: Mailbox) -> list[RequestOutput]:
        """Empty `box`; run one step first if there is nothing in it. Raises as `step`."""
        self._check_process()
        with self._turns:
            if not box:
                self._advance()
            due = list(box.values())
            box.clear()
        return due

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Drop requests; unknown ids are ignored. Raises `RequestError` for what is no id."""
        ids = listed_ids(request_ids)
        if self._forked():
            return  # they are the parent's
        with self._turns:
            for request_id in ids:
                self._abort(request_id)
            self._watch.look(self.core.stats, now=not self._outputs.live())

    def is_live(self, request_id: str) -> bool:
        """The request has not ended, or its end was not returned by `step` yet."""
        return request_id in self._outputs or request_id in self._due

    def has_unfinished_requests(self) -> bool:
        """There are requests that have not ended, or outputs that `step` is to return."""
        return bool(self._due or self._outputs.live())

    @property
    def recorders(self) -> Mapping[str, FrontRecorder]:
        """The front halves of its stat loggers, by name."""
        return self._watch.recorders

    def stats(self) -> SchedulerStats:
        return self.core.stats()

    def kv_event_stats(self) -> PublisherStats:
        """Batches of KV events that were published, dropped, and are queued."""
        return self.core.kv_event_stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False if a running request still uses some. Raises
        `EngineDeadError` if there is no engine any more."""
        self.check_alive()
        with self._turns:
            self.check_alive()
            return self.core.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """As `LLM.sleep`."""
        self.check_alive()
        with self._turns:
            self.check_alive()
            self.core.sleep(check_level(level))
            self._watch.look(self.core.stats, now=True)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """As `LLM.wake_up`."""
        self.check_alive()
        with self._turns:
            self.check_alive()
            self.core.wake(check_tags(tags))
            self._watch.look(self.core.stats, now=True)

    def is_sleeping(self) -> bool:
        """A part of it sleeps."""
        return self.core.sleep_level > 0

    def close(self) -> None:
        """Drop all requests and release the device; a second call does nothing.

        Waits for the step that another thread runs. A forked child releases nothing.
        """
        if self._forked():
            self._closed = True
            return
        with self._turns:
            if self._closed:
                return
            self._closed = True
            self._forget_boxes()
            if self._fault is None:
                self.abort_request(self._outputs.live())
            self.core.close()
            self._watch.close()

    def _add(
        self,
        request_id: str,
        prompt: Prompt | TokenisedPrompt,
        params: SamplingParams,
        priority: int,
        trace_headers: Mapping[str, str],
    ) -> None:
        if self.is_live(request_id):
            raise RequestError(
                f"request_id={request_id!r} is in use by a live request", field="request_id"
            )
        tokens = self.inputs.tokenise(prompt)
        # The engine's ids are our own, so that a user's id can never look like a child of another
        # request.
        requests = self.inputs.requests(str(self._serial), tokens, params, priority=priority)
        self._serial += 1
        for number, request in enumerate(requests):
            try:
                self.core.add(request)
            except Exception:
                self.core.abort([item.request_id for item in requests[:number]])
                raise
        self._outputs.add(request_id, tokens, params, requests, trace_headers)

    def _advance(self) -> None:
        """Run one step and put what is due where it is waited for."""
        self.check_alive()
        try:
            outputs = self.core.step()
        except Exception as error:
            if self.core.shield.caused(error):
                raise
            self._die(error)
            raise EngineDeadError(
                f"the engine failed in a step: {type(error).__name__}: {error}"
            ) from error
        changed, stopped = self._outputs.process(outputs)
        for output in changed:
            self._boxes.get(output.request_id, self._due)[output.request_id] = output
            if output.finished:
                self._boxes.pop(output.request_id, None)
        if stopped:
            self.core.finish(stopped, "stop")
        self._watch.look(self.core.stats, now=not self._outputs.live())

    def _abort(self, request_id: str) -> None:
        """Drop one request; whoever waits at its box is told, for another may have dropped it."""
        self._due.pop(request_id, None)
        output = self._outputs.get(request_id)
        self.core.abort(self._outputs.drop(request_id, "abort"))
        box = self._boxes.pop(request_id, None)
        if box is not None and output is not None:
            box[request_id] = output

    def _forget_boxes(self) -> None:
        self._due.clear()
        self._boxes.clear()

    def _die(self, error: BaseException) -> None:
        self._fault = error
        self._forget_boxes()
        for request_id in self._outputs.live():
            self._outputs.drop(request_id, "error", f"the engine failed: {error}")

    def check_alive(self) -> None:
        """Raise `EngineDeadError` if the engine failed, was closed, or is a parent process's."""
        self._check_process()
        if self._closed:
            raise EngineDeadError("this engine is closed")
        if self._fault is not None:
            raise EngineDeadError(f"the engine failed earlier: {self._fault}") from self._fault

    def _forked(self) -> bool:
        return os.getpid() != self._process

    def _check_process(self) -> None:
        """Before any lock: in a forked child it may be held for ever by a thread of the parent."""
        if self._forked():
            raise EngineDeadError(
                f"this engine lives in process {self._process}, of which this one is a forked "
                "child; a child makes an engine of its own"
            )
