"""One sequence's way from token ids to the text that may be shown."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from pegboard.api.params import SamplingParams
from pegboard.api.tokenizer import Detokenizer, TextTokenizer
from pegboard.text.stops import StopMatch, StopMatcher, StopSet

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
    both give nothing. `stops` is the set of ``params.stop_strings``, where it was made already (for
    another sequence of the request). The work is linear in the text, however long a stop string is.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        params: SamplingParams,
        *,
        prompt_ids: Iterable[int] = (),
        stops: StopSet | None = None,
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(
            prompt_ids,
            skip_special_tokens=params.skip_special_tokens,
            spaces_between_special_tokens=params.spaces_between_special_tokens,
        )
        self._matcher = StopMatcher(stops or StopSet(params.stop_strings))
        self._include_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._tokens = 0
        self._shown = self._read = 0
        """Characters shown, and characters that there are."""
        self._held: deque[str] = deque()
        """What is not shown, in the pieces it came in."""
        self._ends: deque[int] = deque()
        """Of each token that is not released: the offset in the text where its own text ends."""
        self._stopped = False

    @property
    def bare(self) -> Detokenizer | None:
        """The detokeniser, where there is no stop string to look for and all text is shown at
        once: whoever pushes ids to it need not call `push`. Asked before the first token."""
        return None if self._matcher.active else self._detokenizer

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
        match = self._scan(self._detokenizer.finish())
        if match is not None:
            return self._stop(match, 0)
        return self._end(TextDelta("".join(self._held), len(self._ends), 0))

    def _take(self, token_id: int) -> StopMatch | None:
        self._tokens += 1
        match = self._scan(self._detokenizer.push((token_id,)))
        self._ends.append(self._read)
        return match

    def _scan(self, text: str) -> StopMatch | None:
        self._held.append(text)
        self._read += len(text)
        return self._matcher.scan(text, armed=self._tokens > self._min_tokens)

    def _release(self, safe: int, consumed: int) -> TextDelta:
        """Show the tokens that end at or before the offset `safe`."""
        pieces = []
        while self._ends and self._ends[0] <= safe:
            self._shown = self._ends.popleft()
            pieces.append(self._held.popleft())
        return TextDelta("".join(pieces), len(pieces), consumed)

    def _stop(self, match: StopMatch, consumed: int) -> TextDelta:
        end = match.end if self._include_stop else match.start
        text = "".join(self._held)[: end - self._shown]
        return self._end(TextDelta(text, len(self._ends), consumed, match.stop))

    def _end(self, delta: TextDelta) -> TextDelta:
        self._stopped = True
        self._held.clear()
        self._ends.clear()
        return delta
