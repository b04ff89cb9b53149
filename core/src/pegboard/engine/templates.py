"""The chat templates of one engine: the operator's, the model's, and those that requests bring."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from typing import Any

from pegboard.errors import ConfigError, RequestError
from pegboard.text.chat import MAX_TEMPLATE, ChatTemplate

__all__ = ["TemplateBook", "read_template", "template_variables"]

_RESERVED = ("chat_template", "chat_template_content_format", "messages", "self")
"""Names that are arguments of their own, so no variable may have them."""


_MOST_KEPT = 64
"""Compiled templates."""


class TemplateBook:
    """Compiled templates, made when first used.

    `own` is the operator's template (source, or the name of one of `named`, the model's); it takes
    the place of the model's. Raises `ConfigError` if it is neither.
    """

    def __init__(
        self, own: str | None, named: Mapping[str, str], special_tokens: Mapping[str, str]
    ) -> None:
        self._own = own
        self._named = named
        self._special = special_tokens
        self._made: dict[tuple[str | None, bool], ChatTemplate] = {}
        if own is not None:
            self._check_own(own)

    def get(self, wanted: Any, *, with_tools: bool) -> ChatTemplate:
        """The template for a request that asks for `wanted` (None: whichever is usual).

        Raises `RequestError` if there is none, `ConfigError` if it cannot be compiled.
        """
        if wanted is not None and (not isinstance(wanted, str) or not wanted):
            raise RequestError(
                f"chat_template={reprlib.repr(wanted)} is not allowed: the source of a template, "
                "the name of one of the model's, or None",
                field="chat_template",
            )
        key = (wanted or self._own, with_tools)
        found = self._made.get(key)
        if found is None:  # compiling one takes milliseconds
            found = ChatTemplate.choose(
                key[0], self._named, with_tools=with_tools, special_tokens=self._special
            )
            if len(self._made) >= _MOST_KEPT:  # requests may bring any number
                self._made.clear()
            self._made[key] = found
        return found

    def _check_own(self, own: str) -> None:
        try:
            self.get(None, with_tools=False)
        except RequestError as error:
            names = ", ".join(sorted(self._named)) or "it has none"
            raise ConfigError(
                f"chat_template={reprlib.repr(own)} is not allowed: the path of a file, the source "
                f"of a template, or the name of one of the model's ({names})"
            ) from error


def read_template(given: str | None) -> str | None:
    """The operator's template: the content of a file if there is one of that name, else `given`.

    Templates that come with a request are never looked up in the file system. Raises `ConfigError`
    if the path is a directory, or the file cannot be read or holds no template.
    """
    if given is None or "\n" in given or not os.path.exists(given):
        return given
    lead = f"chat_template={given!r} is not allowed:"
    if not os.path.isfile(given):
        raise ConfigError(f"{lead} it is a path, but not of a file")
    try:
        with open(given, encoding="utf-8") as file:
            source = file.read(MAX_TEMPLATE + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{lead} the file cannot be read: {reason}") from error
    if "{" not in source:
        raise ConfigError(f"{lead} the file holds no template (there is no '{{' in it)")
    return source


def template_variables(given: Any) -> dict[str, Any]:
    """`chat_template_kwargs` of a request, checked. Raises `RequestError`."""
    if given is None:
        return {}
    allowed = "a mapping from names of template variables to values, or None"
    if not isinstance(given, Mapping):
        raise _bad_variables(given, allowed)
    for name in given:
        if not isinstance(name, str):
            raise _bad_variables(given, f"{allowed}; {name!r} is no name")
        if name in _RESERVED:
            raise _bad_variables(given, f"{allowed}; {name!r} is an argument of its own")
    return dict(given)


def _bad_variables(given: Any, allowed: str) -> RequestError:
    return RequestError(
        f"chat_template_kwargs={reprlib.repr(given)} is not allowed: {allowed}",
        field="chat_template_kwargs",
    )
