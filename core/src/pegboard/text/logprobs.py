"""Log-probabilities as users read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pegboard.api.params import Logprob

if TYPE_CHECKING:
    from pegboard.api.step import TokenLogprobs
    from pegboard.api.tokenizer import TextTokenizer

__all__ = ["LogprobDecoder"]


class LogprobDecoder:
    """Puts texts to the log-probabilities of a step.

    Every token is decoded by itself, never together with its neighbours or with alternatives of its
    position. A token that is part of a character shows as U+FFFD; `Tokenizer.token_bytes` has its
    bytes.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer

    def text(self, token_id: int) -> str:
        """Text of one token inside a text; the name of a special one."""
        return self._tokenizer.token_bytes(token_id).decode(errors="replace")

    def entry(self, position: TokenLogprobs) -> dict[int, Logprob]:
        """Log-probabilities at one position by token id.

        The chosen token comes first, the alternatives follow from the likeliest on. If the chosen
        one is among them, it is there once, with its own rank.
        """
        entries: dict[int, Logprob] = {}
        for place, (token_id, value) in enumerate(
            zip(position.ids, position.logprobs, strict=True)
        ):
            rank = position.rank if place == 0 else place
            entries.setdefault(token_id, Logprob(value, rank, self.text(token_id)))
        return entries
