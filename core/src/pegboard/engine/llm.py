"""`LLM`: a model in this process, for batches of prompts."""

from __future__ import annotations

import itertools
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pegboard.api.params import SamplingParams
from pegboard.api.tokenizer import TextTokenizer
from pegboard.config.engine import EngineConfig
from pegboard.engine.build import build_engine
from pegboard.engine.front import Conversation
from pegboard.engine.inputs import Prompt, TokenisedPrompt, is_token_like
from pegboard.engine.llm_engine import Mailbox
from pegboard.engine.outputs import RequestOutput
from pegboard.engine.templates import template_variables
from pegboard.errors import RequestError
from pegboard.plugins import Board

__all__ = ["LLM"]


class LLM:
    """A language model that answers batches of prompts.

    Several threads may use one model, and streams may be read in turns: their requests run
    together. In a forked child every call raises `EngineDeadError`.

    Args:
        model: Path of a checkpoint (a directory of safetensors, a GGUF file) or a hub id.
        board: Plugins to use; None discovers those that are installed.
        progress: Called with (bytes loaded, bytes in all) while weights stream in.
        options: Settings of `EngineConfig`, for example ``dtype``, ``max_model_len``,
        ``block_size``,
            ``max_num_seqs``, ``max_num_batched_tokens``, ``num_gpu_blocks_override``,
            ``kv_cache_memory_bytes``,
            ``enable_prefix_caching``, ``seed``.

    Raises:
        ConfigError: A setting is not allowed.
        CheckpointError: The model's files are missing or malformed.
        MissingPluginError: No installed plugin serves the model; the message says which one would.
        ResourceError: The model does not fit; the message says what would.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        board: Board | None = None,
        progress: Callable[[int, int], Any] | None = None,
        **options: Any,
    ) -> None:
        config = EngineConfig.from_options({"model": model, **options})
        built = build_engine(config, board=board, progress=progress)
        self.config = built.config
        self.model = built.model
        self.cache = built.cache
        self.board = built.board
        self.engine = built.engine
        self._front = built.front
        self._used = built.used
        self._names = map(str, itertools.count())

    def generate(
        self,
        prompts: Prompt | TokenisedPrompt | Sequence[Prompt | TokenisedPrompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts; results in the order of the prompts.

        Args:
            prompts: Text, a list of token ids, a mapping (``{"prompt": …}`` or
            ``{"prompt_token_ids": …}``, with an
                optional ``cache_salt``), what `apply_chat_template` returns, or a list of these.
            sampling_params: One for all, one per prompt, or None for the model's own defaults. A
            list of prompts with
                one seed gives each prompt that seed, so equal prompts get equal answers.
            use_tqdm: Show a progress bar on the terminal.
            priority: One integer per prompt, the lower served first; other than 0 only with
                ``scheduling_policy="priority"``.

        Raises:
            RequestError: A prompt or parameter is not allowed. All are checked before any of them
            runs.
        """
        listed = _listed(prompts)
        params = self._params_for(sampling_params, len(listed))
        ranks = self._ranks(priority, len(listed))
        tokenised = [
            self._tokenise(prompt, place, len(listed)) for place, prompt in enumerate(listed)
        ]
        return self._run(tokenised, params, ranks, use_tqdm)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or a list of them, through the model's chat template."""
        conversations = _conversations(messages)
        options = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "tools": tools,
            **template_variables(chat_template_kwargs),
        }
        prompts = [
            self.apply_chat_template(item, chat_template, **options) for item in conversations
        ]
        params = self._params_for(sampling_params, len(prompts))
        return self._run(prompts, params, [0] * len(prompts), use_tqdm)

    def apply_chat_template(
        self, messages: Conversation, chat_template: str | None = None, **options: Any
    ) -> TokenisedPrompt:
        """Render a conversation and tokenise it; special tokens are those that the template
        wrote."""
        return self._front.apply_chat_template(messages, chat_template, **options)

    def stream(
        self, prompt: Prompt | TokenisedPrompt, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Answer one prompt, yielding its state after the first token, then every
        ``stream_interval`` tokens, and at the end.

        Raises `EngineDeadError` if the engine is closed meanwhile.
        """
        if sampling_params is not None:
            self.engine.inputs.check_params(sampling_params)
        params = self._params_for(sampling_params, 1)[0]
        request_id = self._next_id()
        box: Mailbox = {}
        finished = False
        try:
            self.engine.add_request(request_id, prompt, params, box=box)
            while not finished:
                for output in self.engine.step_for(box):
                    finished = output.finished
                    yield output
        finally:
            self.engine.abort_request(request_id)

    def get_tokenizer(self) -> TextTokenizer:
        """The model's tokeniser."""
        return self._front.get_tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's authors recommend, else the defaults of `SamplingParams`."""
        return self._front.default_params()

    def plugins(self) -> list[dict[str, Any]]:
        """A row of plain values for the core and for each plugin found: ``id``, ``distribution``,
        ``group``, ``state``, ``reason``; ``installed`` (its version), ``loaded``, and ``used``,
        what this engine uses of it as ``"surface:name"``."""
        return self.board.report({**self._used, **self._front.used_so_far()})

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False if a running request still uses some."""
        return self.engine.reset_prefix_cache()

    def sleep(self, level: int = 1) -> None:
        """Give memory back without ending the engine, whose prefix cache is forgotten.

        Args:
            level: 1: the KV cache is freed, weights are kept in the host's memory. 2: the weights
            are freed too.

        Raises `RequestError` if requests are not over, and `UnsupportedError` where executor or
        platform cannot. Requests during sleep raise `RequestError`.
        """
        self.engine.sleep(level)

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End `sleep`: weights that were freed are read from the checkpoint again.

        Args:
            tags: What is to wake up, of ``"weights"`` and ``"kv_cache"``; None: all of it. The
            engine serves again when both are awake.

        Raises `ResourceError` if the memory is not there any more; it may be called again.
        """
        self.engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Some of it sleeps."""
        return self.engine.is_sleeping()

    def close(self) -> None:
        """Release the device."""
        self.engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(
        self,
        prompts: Sequence[TokenisedPrompt],
        params: Sequence[SamplingParams],
        ranks: Sequence[int],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        ids: list[str] = []
        box: Mailbox = {}
        done: dict[str, RequestOutput] = {}
        try:
            for prompt, param, rank in zip(prompts, params, ranks, strict=True):
                request_id = self._next_id()
                ids.append(request_id)  # first, since an interrupt may come between
                self.engine.add_request(request_id, prompt, param, priority=rank, box=box)
            with _progress_bar(len(ids), use_tqdm) as bar:
                while len(done) < len(ids):
                    for output in self.engine.step_for(box):
                        if output.finished:
                            done[output.request_id] = output
                            bar.update(1)
        finally:
            self.engine.abort_request([item for item in ids if item not in done])
        return [done[request_id] for request_id in ids]

    def _tokenise(
        self, prompt: Prompt | TokenisedPrompt, place: int, count: int
    ) -> TokenisedPrompt:
        try:
            return self.engine.inputs.tokenise(prompt)
        except RequestError as error:
            if count == 1:
                raise
            raise RequestError(f"prompt {place}: {error}", field=error.field) from error

    def _params_for(
        self, given: SamplingParams | Sequence[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        params = list(given) if isinstance(given, (list, tuple)) else [given] * count
        if len(params) != count:
            raise RequestError(
                f"sampling_params has {len(params)} entries for {count} prompts",
                field="sampling_params",
            )
        for item in params:
            self.engine.inputs.check_params(item)
        return params  # type: ignore[return-value]

    def _ranks(self, priority: Sequence[int] | None, count: int) -> list[int]:
        if priority is None:
            return [0] * count
        if not isinstance(priority, Sequence) or isinstance(priority, (str, bytes)):
            raise RequestError(
                f"priority={reprlib.repr(priority)} is not allowed: a list of one integer per "
                "prompt",
                field="priority",
            )
        if len(priority) != count:
            raise RequestError(
                f"priority has {len(priority)} entries for {count} prompts", field="priority"
            )
        for rank in priority:
            self.engine.inputs.check_priority(rank)
        return list(priority)

    def _next_id(self) -> str:
        return next(name for name in self._names if not self.engine.is_live(name))


def _listed(prompts: Any) -> list[Prompt | TokenisedPrompt]:
    """A list of prompts: one text, one mapping or one list of ids is a single prompt."""
    if isinstance(prompts, (str, Mapping, TokenisedPrompt)):
        return [prompts]
    if not isinstance(prompts, Sequence):
        raise RequestError(
            f"prompts is a {type(prompts).__name__}; allowed are text, token ids, a mapping or a "
            "list of these",
            field="prompts",
        )
    if isinstance(prompts, (bytes, bytearray, memoryview)):
        return [prompts]  # one prompt, which is refused as what it is
    if prompts and (isinstance(prompts[0], bool) or is_token_like(prompts[0])):
        return [prompts]
    return list(prompts)


def _conversations(messages: Any) -> list[Conversation]:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise RequestError(
            f"messages={reprlib.repr(messages)} is not allowed: a list of at least one message",
            field="messages",
        )
    if isinstance(messages[0], Mapping):
        return [messages]
    for place, item in enumerate(messages):
        if not isinstance(item, (list, tuple)):
            raise RequestError(
                f"messages[{place}]={reprlib.repr(item)} is not allowed: a mapping with 'role' and "
                "'content', or a list of such mappings",
                field="messages",
            )
    return list(messages)


def _progress_bar(total: int, shown: bool) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, desc="prompts", disable=not shown, leave=False)
