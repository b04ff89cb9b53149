"""A built tokeniser, and what it is built from. Part of `pegboard.api.tokenizer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import attrs

from pegboard.api.checkpoint_files import TokenizerSpec
from pegboard.api.metrics import PluginMetrics

__all__ = ["Detokenizer", "TextTokenizer", "TokenizerContext"]


@attrs.frozen
class TokenizerContext:
    """What a tokeniser is built from."""

    spec: TokenizerSpec
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class Detokenizer(Protocol):
    """The text of one sequence, piece by piece; used by one thread."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain after these ids: no half character, nothing that a later id may
        change. All pieces together are what `TextTokenizer.decode` gives of all ids at once, in the
        place where they stand. Never raises; an id that is no token gives no text."""
        ...

    def finish(self) -> str:
        """What is left when no more ids come; an unfinished character is U+FFFD."""
        ...


class TextTokenizer(Protocol):
    """A tokeniser. Immutable.

    One that keeps every character may have ``longest_token: int``, most characters of a text that a
    token stands for: a prompt of more characters than fill the context is then refused unread.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts that chat templates may name, e.g. ``{"bos_token": "<s>"}``."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""
        ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of a text, with what belongs around one unless `add_special_tokens` is False. Special
        tokens that are written out are read as such. Raises `RequestError` with field ``prompt``
        for what is no text, half of a surrogate pair included."""
        ...

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a rendered chat template, which wrote its special tokens itself."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; invalid bytes give U+FFFD, ids that are no token nothing."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """What a token stands for inside a text, of a special one its name; empty for no token."""
        ...

    def id_to_token(self, token_id: int) -> str | None:
        """The token as the vocabulary writes it."""
        ...

    def token_to_id(self, token: str) -> int | None: ...

    def detokenizer(
        self,
        prompt_ids: Iterable[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> Detokenizer:
        """For a text that follows `prompt_ids`, whose own text is not given. Of
        `spaces_between_special_tokens` only vocabularies of words make use."""
        ...
