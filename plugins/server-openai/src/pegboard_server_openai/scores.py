"""Log-probabilities in OpenAI's two forms."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

import msgspec

from pegboard import Logprob
from pegboard.api.tokenizer import TextTokenizer

__all__ = ["ChatScores", "CompletionScores", "ScoreWriter", "TokenScore"]

Entry = Mapping[int, Logprob]


class TopScore(msgspec.Struct):
    """One token at a position of a chat."""

    token: str
    logprob: float
    bytes: list[int]


class TokenScore(TopScore):
    """The chosen token, and the likeliest ones."""

    top_logprobs: list[TopScore]


class ChatScores(msgspec.Struct):
    """``logprobs`` of a choice of a chat."""

    content: list[TokenScore]
    refusal: None = None


class CompletionScores(msgspec.Struct):
    """``logprobs`` of a choice of a completion, in columns."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    """The likeliest tokens and the chosen one; that one alone where none were asked for."""
    text_offset: list[int]


class ScoreWriter:
    """Writes the log-probabilities of one choice, from its first token on.

    Every token is decoded by itself. `count` is how many alternatives were asked for.
    """

    def __init__(
        self, tokenizer: TextTokenizer, count: int, *, as_ids: bool = False, hidden: bool = True
    ) -> None:
        """`as_ids`: tokens are named by their ids; `hidden`: special ones are not in the text."""
        self._tokenizer = tokenizer
        self._count = count
        self._as_ids = as_ids
        self._hidden = tokenizer.special_ids if hidden else frozenset()
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def chat(self, ids: Sequence[int], entries: Sequence[Entry]) -> ChatScores:
        """Positions of a chat."""
        return ChatScores([self._position(i, e) for i, e in zip(ids, entries, strict=True)])

    def completion(
        self, ids: Sequence[int], entries: Sequence[Entry | None], *, shown: bool = False
    ) -> CompletionScores:
        """Positions of a completion; `shown`: special tokens are in the text, as in a prompt."""
        values = [None if e is None else e[i].logprob for i, e in zip(ids, entries, strict=True)]
        tops = [None if e is None else self._named(i, e) for i, e in zip(ids, entries, strict=True)]
        return CompletionScores(
            [self._name(i) for i in ids], values, tops, [self._place(i, shown) for i in ids]
        )

    def _position(self, token: int, entry: Entry) -> TokenScore:
        chosen = self._score(token, entry[token])
        tops = [self._score(i, entry[i]) for i in self._top(entry)]
        return TokenScore(chosen.token, chosen.logprob, chosen.bytes, tops)

    def _score(self, token: int, value: Logprob) -> TopScore:
        data = self._tokenizer.token_bytes(token)
        name = f"token_id:{token}" if self._as_ids else data.decode(errors="replace")
        return TopScore(name, value.logprob, list(data))

    def _top(self, entry: Entry) -> list[int]:
        """The likeliest tokens, not more than were asked for."""
        ranked = ((v.rank or 0, token) for token, v in entry.items())
        return [token for rank, token in sorted(ranked) if rank <= self._count]

    def _named(self, chosen: int, entry: Entry) -> dict[str, float]:
        """By name; the chosen one is among them. Tokens whose names are equal go by their ids."""
        named: dict[str, float] = {}
        for token in dict.fromkeys((chosen, *self._top(entry))):
            name = self._name(token)
            named[f"token_id:{token}" if name in named else name] = entry[token].logprob
        return named

    def _name(self, token: int) -> str:
        """A token's text; the bytes of one that is no text by itself, so that none is lost."""
        if self._as_ids:
            return f"token_id:{token}"
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{value:02x}" for value in data)

    def _place(self, token: int, shown: bool) -> int:
        """Where the token begins in the text, in characters."""
        place = self._offset
        if shown or token not in self._hidden:
            self._offset += len(self._decoder.decode(self._tokenizer.token_bytes(token)))
        return place
