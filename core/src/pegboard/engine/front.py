"""The front end of an engine: what is known of the model without any tensor."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.params import SamplingParams
from pegboard.api.tokenizer import TextTokenizer
from pegboard.config.engine import EngineConfig
from pegboard.config.generation import sampling_defaults
from pegboard.config.logits import make_roster
from pegboard.config.model import ResolvedModel, resolve_model
from pegboard.config.plugin_policy import policy_of
from pegboard.config.served_tokenizer import served_spec
from pegboard.config.tokenizer import build_tokenizer, tokenizer_name
from pegboard.engine.inputs import InputProcessor, TokenisedPrompt
from pegboard.engine.templates import TemplateBook, read_template
from pegboard.errors import RequestError
from pegboard.logging import get_logger
from pegboard.plugins import Board, load_plugins
from pegboard.plugins.report import Used

__all__ = ["Conversation", "FrontEnd", "build_front", "load_front"]

Conversation = Sequence[Mapping[str, Any]]
"""Messages, each with ``role`` and ``content``."""


@attrs.frozen(eq=False)
class FrontEnd:
    """Templates, tokeniser and checks, wherever the engine runs. Several threads may use one."""

    config: EngineConfig
    board: Board
    model: ResolvedModel
    tokenizer: TextTokenizer | None
    templates: TemplateBook
    inputs: InputProcessor
    used: Used
    """What it uses of the board from the start, beside what the engine does."""
    _defaults: list[SamplingParams] = attrs.field(factory=list, init=False, repr=False)
    """Those of `default_params`, once they are known."""
    _added: dict[str, tuple[str, ...]] = attrs.field(factory=dict, init=False, repr=False)

    def uses(self, surface: str, names: Iterable[str]) -> None:
        """Be told what else of the board serves, for `used_so_far`."""
        self._added[surface] = (*self._added.get(surface, ()), *names)

    def used_so_far(self) -> Used:
        """What it uses of the board, with what requests have asked for and what it was told of."""
        processors = self.inputs.processors.used
        asked = {"logits": processors} if processors else {}
        return {**self.used, **asked, **self._added}

    def get_tokenizer(self) -> TextTokenizer:
        """The model's tokeniser; `RequestError` without one."""
        if self.tokenizer is None:
            why = self.model.tokenizer_problem
            raise RequestError(
                f"this engine has no tokeniser ({why}); give token ids", field="prompt"
            )
        return self.tokenizer

    def default_params(self) -> SamplingParams:
        """What the model's authors recommend, else the defaults of `SamplingParams`."""
        if not self._defaults:  # reading them takes longer than tokenising a prompt
            given = self.model.checkpoint.generation_defaults
            self._defaults.append(SamplingParams(**sampling_defaults(given)))
        return self._defaults[0]

    def apply_chat_template(
        self, messages: Conversation, chat_template: str | None = None, **options: Any
    ) -> TokenisedPrompt:
        """Render a conversation and tokenise it; special tokens are those that the template
        wrote."""
        tokenizer = self.get_tokenizer()
        template = self.templates.get(chat_template, with_tools=bool(options.get("tools")))
        text = template.render(messages, **options)
        self.inputs.check_length(text)
        return self.inputs.checked(tokenizer.encode_chat(text), text=text)


def load_front(config: EngineConfig) -> FrontEnd:
    """All that a process without an engine needs of a model; it never imports torch. Raises what
    `load_plugins`, `resolve_model` and `build_front` raise."""
    own_template = read_template(config.chat_template)
    board = load_plugins(policy=policy_of(config), role="front")
    with board.watched():
        return build_front(board, config, resolve_model(board, config), own_template)


def build_front(
    board: Board, config: EngineConfig, model: ResolvedModel, own_template: str | None
) -> FrontEnd:
    """Tokeniser, templates and checks of a model; `own_template` is the operator's, read already.

    Raises what `make_roster`, `build_tokenizer` and `TemplateBook` raise.
    """
    roster = make_roster(board, config)
    spec = _tokenizer_spec(board, config, model)
    mode = config.tokenizer_mode
    tokenizer = None if spec is None else build_tokenizer(board, spec, mode)
    used = {} if spec is None else {"tokenizer": (tokenizer_name(spec, mode),)}
    special = tokenizer.special_tokens if tokenizer is not None else {}
    inputs = InputProcessor(
        encoder=tokenizer,
        vocab_size=model.facts.vocab_size,
        max_model_len=model.max_model_len,
        eos_token_ids=model.eos_token_ids,
        seeds=random.Random(config.seed),
        encoder_problem=model.tokenizer_problem,
        priorities=config.scheduling_policy == "priority",
        processors=roster.telling(model.eos_token_ids, lambda: tokenizer),
    )
    templates = TemplateBook(own_template, model.checkpoint.chat_templates, special)
    return FrontEnd(config, board, model, tokenizer, templates, inputs, used)


def _tokenizer_spec(
    board: Board, config: EngineConfig, model: ResolvedModel
) -> TokenizerSpec | None:
    """As `served_spec`, with a warning if there is none though it is wanted."""
    spec = served_spec(board, config, model)
    if spec is None and not config.skip_tokenizer_init:
        get_logger("pegboard.engine").warning("no tokeniser", reason=model.tokenizer_problem)
    return spec
