"""Chat templates: from a conversation to the text of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2

from pegboard.errors import ConfigError, RequestError
from pegboard.text.messages import plain_data, prepare_messages
from pegboard.text.sandbox import SecurityError, TemplateEnvironment, TemplateRefusal
from pegboard.text.template_facts import CONTENT_FORMATS, content_facts

__all__ = ["MAX_TEMPLATE", "ChatTemplate"]

MAX_TEMPLATE = 1 << 20
"""Most characters of a template's source."""
_SENTINEL = "PEGBOARD-CONTINUES-HERE "
"""Marks the end of the message to be continued; its last character tells if the template trims."""


class ChatTemplate:
    """A compiled template; it may be used from several threads.

    Renders as transformers' `apply_chat_template` does, in a sandbox (see `pegboard.text.sandbox`),
    after bringing the conversation into the form that the template expects (see
    `pegboard.text.messages`).

    `name` is for messages; `special_tokens` are texts that the template may name, such as
    ``bos_token``; `now` is the clock behind ``strftime_now``. Raises `ConfigError` if `source` is
    no template or longer than `MAX_TEMPLATE`.
    """

    def __init__(
        self,
        source: str,
        *,
        name: str = "default",
        special_tokens: Mapping[str, str] | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self.name = name
        self.special_tokens = dict(special_tokens or {})
        if len(source) > MAX_TEMPLATE:
            raise ConfigError(
                f"chat template {name!r} has {len(source)} characters; "
                f"at most {MAX_TEMPLATE} are allowed"
            )
        self._environment = TemplateEnvironment(now)
        try:
            self._template, tree = self._environment.compile_bounded(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError) as error:
            line = getattr(error, "lineno", None)
            where = f" at line {line}" if line else ""
            raise ConfigError(f"chat template {name!r} is not valid{where}: {error}") from error
        self.facts = content_facts(tree)

    @classmethod
    def choose(
        cls,
        wanted: str | None,
        named: Mapping[str, str],
        *,
        with_tools: bool = False,
        special_tokens: Mapping[str, str] | None = None,
    ) -> ChatTemplate:
        """The template for a request.

        `wanted` is the name of one of the checkpoint's templates (`named`) or the source of
        another; None takes the one called ``tool_use`` if there are tools, else ``default``, else
        the only one. Raises `RequestError` if there is none.
        """
        if wanted is not None and wanted not in named:
            if "{" not in wanted:  # a mistyped name would be a template that always says itself
                raise RequestError(
                    f"chat_template {wanted!r} is neither a template nor the name of one; "
                    f"names are: {_list(named) or 'none'}",
                    field="chat_template",
                )
            return cls(wanted, name="given", special_tokens=special_tokens)
        name = wanted or _usual_name(named, with_tools)
        return cls(named[name], name=name, special_tokens=special_tokens)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_content_format: str = "auto",
        **kwargs: Any,
    ) -> str:
        """The text of the prompt; encode it with `Tokenizer.encode_chat`.

        `tools` are JSON schemas of functions, `documents` mappings for retrieval; empty lists count
        as None. With `add_generation_prompt` the text ends where the assistant's answer begins;
        with `continue_final_message` it ends in the last message, which is left open (white space
        at its end goes if the template trims). `chat_template_content_format` says how contents
        reach the template: ``"string"`` (one text), ``"openai"`` (a list of parts), or ``"auto"``
        (what the template looks for). Further keyword arguments are variables of the
        template, such as ``enable_thinking``; they come before special tokens.

        Raises `RequestError` if a message is malformed or the template does not accept the
        conversation, and `ConfigError` if the template does something that the sandbox does not
        allow.
        """
        _check_flag("add_generation_prompt", add_generation_prompt)
        _check_flag("continue_final_message", continue_final_message)
        if add_generation_prompt and continue_final_message:
            raise RequestError(
                "add_generation_prompt and continue_final_message cannot both be true: "
                "one begins an answer, the other continues the last message",
                field="continue_final_message",
            )
        if chat_template_content_format not in CONTENT_FORMATS:
            raise RequestError(
                f"chat_template_content_format={chat_template_content_format!r} is not allowed: "
                f"one of {', '.join(CONTENT_FORMATS)}",
                field="chat_template_content_format",
            )
        facts = self.facts.in_format(chat_template_content_format)
        prepared = prepare_messages(messages, facts)
        final = _leave_open(prepared[-1]) if continue_final_message else ""
        text = self._render(
            {
                **self.special_tokens,
                **plain_data(kwargs, "chat_template_kwargs"),
                "messages": prepared,
                "tools": _mappings(tools, "tools"),
                "documents": _mappings(documents, "documents"),
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return self._cut(text, final) if continue_final_message else text

    def _render(self, variables: Mapping[str, Any]) -> str:
        try:
            return self._environment.render_bounded(self._template, variables)
        except TemplateRefusal as error:
            raise RequestError(
                f"the model's chat template refuses these messages: {error}", field="messages"
            ) from error
        except (SecurityError, RecursionError, MemoryError) as error:
            reason = str(error) or type(error).__name__
            raise ConfigError(
                f"chat template {self.name!r} does what is not allowed: {reason}"
            ) from error
        except Exception as error:
            # A template is a program: it may fail in any way on data that it does not expect.
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(
                f"chat template {self.name!r} cannot render these messages: {reason}",
                field="messages",
            ) from error

    def _cut(self, text: str, final: str) -> str:
        """`text` up to the end of the message that is to be continued."""
        place = text.rfind(_SENTINEL.rstrip())
        prompt = text[:place]
        if place >= 0 and not text.startswith(_SENTINEL, place):
            # The template trims: with nothing after it, the message would have lost the white space
            # at its end.
            prompt = prompt.removesuffix(final[len(final.rstrip()) :])
        if place < 0 or not prompt.rstrip().endswith(final.strip()):
            raise RequestError(
                f"continue_final_message: chat template {self.name!r} does not end in the text of "
                "the last message",
                field="continue_final_message",
            )
        return prompt


def _usual_name(named: Mapping[str, str], with_tools: bool) -> str:
    if not named:
        raise RequestError(
            "this model has no chat template: give one as chat_template, or send a plain prompt",
            field="chat_template",
        )
    if with_tools and "tool_use" in named:
        return "tool_use"
    if "default" in named:
        return "default"
    if len(named) == 1:
        return next(iter(named))
    raise RequestError(
        f"this model has no default chat template: give chat_template, one of {_list(named)}",
        field="chat_template",
    )


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise RequestError(f"{name}={value!r} is not allowed: True or False", field=name)


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _mappings(values: Any, field: str) -> list[dict[str, Any]] | None:
    if values is None or (isinstance(values, (list, tuple)) and not values):
        return None
    if not isinstance(values, (list, tuple)) or not all(
        isinstance(value, Mapping) for value in values
    ):
        raise RequestError(f"{field} must be a list of mappings", field=field)
    plain: list[dict[str, Any]] = plain_data(values, field)
    return plain


def _leave_open(message: dict[str, Any]) -> str:
    """Mark the end of the message's text and return the text."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _SENTINEL
        return content
    if not content:
        raise RequestError(
            "continue_final_message: the last message has no text", field="continue_final_message"
        )
    text: str = content[-1]["text"]
    content[-1]["text"] = text + _SENTINEL
    return text
