"""One sequence's way from token ids to the text that may be shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from pegboard.api.params import SamplingParams
from pegboard.text.detokenizer import IncrementalDetokenizer
from pegboard.text.stops import StopMatch, StopMatcher
from pegboard.text.tokenizer import Tokenizer

__all__ = ["TextDelta", "TextStream"]


class TextDelta(msgspec.Struct, frozen=True):
    """What became certain with some new tokens."""

    text: str
    """Text to show now: no half character, and nothing of a stop string that is cut off."""
    token_count: int
    """Tokens whose text is now shown in full; they follow those of the last delta.

    While characters are held back, so are their tokens: the ids of this delta decode to its text
    (but for characters whose bytes are not complete yet, and for the last delta where a stop string
    was cut off).
    """
    consumed: int
    """How many of the given ids belong to the sequence.

    All, or those up to and including the one that completed a stop string.
    """
    stopped: str | None = None
    """The stop string that ended the sequence."""


class TextStream:
    """Detokenising, stop strings and `min_tokens` of one sequence.

    A stop string counts if the token that completes it comes after the first `min_tokens` ones.
    Call `push` as tokens arrive and `finish` once when the sequence ended otherwise; after a stop
    both give nothing.
    """

    def __init__(
        self, tokenizer: Tokenizer, params: SamplingParams, *, prompt_ids: Iterable[int] = ()
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer,
            prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._matcher = StopMatcher(params.stop_strings)
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._tokens = 0
        self._held = ""
        self._shown = 0
        """Characters shown; the offset of `_held` in the text."""
        self._ends: deque[int] = deque()
        """Of each token that is not released: the offset in the text where its own text ends."""
        self._stopped = False

    def push(self, ids: Sequence[int]) -> TextDelta:
        """Take the next tokens and return what can be shown.

        An id that ended the sequence without being part of its text (an end-of-sequence token) is
        not given here.
        """
        if self._stopped:
            return TextDelta("", 0, 0)
        if not self._matcher.active:
            self._tokens += len(ids)
            return TextDelta(self._detokenizer.push(ids), len(ids), len(ids))
        for place, token_id in enumerate(ids, 1):
            match = self._take(token_id)
            if match is not None:
                return self._stop(match, place)
        return self._release(self._matcher.safe, len(ids))

    def finish(self) -> TextDelta:
        """The sequence ended: return all that is held back, which may still complete a stop."""
        if self._stopped:
            return TextDelta("", 0, 0)
        match = self._read(self._detokenizer.finish())
        if match is not None:
            return self._stop(match, 0)
        self._stopped = True
        delta = TextDelta(self._held, len(self._ends), 0)
        self._held = ""
        self._ends.clear()
        return delta

    def _take(self, token_id: int) -> StopMatch | None:
        self._tokens += 1
        match = self._read(self._detokenizer.push((token_id,)))
        self._ends.append(self._shown + len(self._held))
        return match

    def _read(self, text: str) -> StopMatch | None:
        self._held += text
        return self._matcher.scan(text, armed=self._tokens > self._min_tokens)

    def _release(self, safe: int, consumed: int) -> TextDelta:
        """Show the tokens that end at or before the offset `safe`."""
        count, upto = 0, self._shown
        while self._ends and self._ends[0] <= safe:
            upto = self._ends.popleft()
            count += 1
        size = upto - self._shown
        text, self._held, self._shown = self._held[:size], self._held[size:], upto
        return TextDelta(text, count, consumed)

    def _stop(self, match: StopMatch, consumed: int) -> TextDelta:
        self._stopped = True
        end = match.end if self._include_stop else match.start
        delta = TextDelta(self._held[: end - self._shown], len(self._ends), consumed, match.stop)
        self._held = ""
        self._ends.clear()
        return delta
