"""`LLMEngine`: the engine and its front end in one process, one step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pegboard.api.events import PublisherStats
from pegboard.api.params import SamplingParams
from pegboard.api.scheduler import SchedulerStats
from pegboard.config.engine import EngineConfig
from pegboard.engine.core import EngineCore
from pegboard.engine.inputs import InputProcessor, Prompt, TokenisedPrompt
from pegboard.engine.output_processor import OutputProcessor
from pegboard.engine.outputs import RequestOutput
from pegboard.errors import EngineDeadError, RequestError
from pegboard.text.tokenizer import Tokenizer

__all__ = ["LLMEngine"]


class LLMEngine:
    """Adds requests and steps them.

    For batches of prompts `LLM` is simpler; this class is for callers that feed requests while
    others run.
    """

    def __init__(
        self,
        core: EngineCore,
        inputs: InputProcessor,
        tokenizer: Tokenizer | None,
        stream_interval: int = 1,
    ) -> None:
        """`stream_interval`: as in `EngineConfig`."""
        self.core = core
        self.inputs = inputs
        self.tokenizer = tokenizer
        self._outputs = OutputProcessor(tokenizer, stream_interval)
        self._serial = 0
        self._fault: BaseException | None = None
        self._closed = False

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
    ) -> None:
        """Queue a request. Raises `RequestError` or `ResourceError` and then keeps nothing of it.

        A lower `priority` is served first; other than 0 only with
        ``scheduling_policy="priority"``.
        """
        self.check_alive()
        if request_id in self._outputs.live():
            raise RequestError(
                f"request_id={request_id!r} is in use by a live request", field="request_id"
            )
        tokens = prompt if isinstance(prompt, TokenisedPrompt) else self.inputs.tokenise(prompt)
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
        self._outputs.add(request_id, tokens, params, requests)

    def step(self) -> list[RequestOutput]:
        """Run one step; the requests whose outputs are due. Raises `EngineDeadError` if the engine
        itself failed."""
        self.check_alive()
        try:
            outputs = self.core.step()
        except Exception as error:
            self._die(error)
            raise EngineDeadError(
                f"the engine failed in a step: {type(error).__name__}: {error}"
            ) from error
        changed, stopped = self._outputs.process(outputs)
        if stopped:
            self.core.finish(stopped, "stop")
        return changed

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """Drop requests; unknown ids are ignored."""
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        for request_id in ids:
            self.core.abort(self._outputs.drop(request_id, "abort"))

    def has_unfinished_requests(self) -> bool:
        return bool(self._outputs.live())

    def stats(self) -> SchedulerStats:
        return self.core.stats()

    def kv_event_stats(self) -> PublisherStats:
        """Batches of KV events that were published, dropped, and are queued."""
        return self.core.kv_event_stats()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False if a running request still uses some."""
        return self.core.reset_prefix_cache()

    def close(self) -> None:
        """Drop all requests and release the device; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        if self._fault is None:
            self.abort_request(self._outputs.live())
        self.core.close()

    def _die(self, error: BaseException) -> None:
        self._fault = error
        for request_id in self._outputs.live():
            self._outputs.drop(request_id, "error", f"the engine failed: {error}")

    def check_alive(self) -> None:
        """Raise `EngineDeadError` if the engine failed or was closed."""
        if self._closed:
            raise EngineDeadError("this engine is closed")
        if self._fault is not None:
            raise EngineDeadError(f"the engine failed earlier: {self._fault}") from self._fault
