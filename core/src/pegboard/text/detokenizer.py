"""From token ids to text while they are generated."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pegboard.text.pieces import PieceJoiner

if TYPE_CHECKING:
    from pegboard.text.tokenizer import Tokenizer

__all__ = ["IncrementalDetokenizer"]

_new_decoder = codecs.getincrementaldecoder("utf-8")


class IncrementalDetokenizer:
    """Text of one sequence, piece by piece.

    No piece holds half a character, and all pieces together are the one-shot decoding of all ids in
    the place where they stand: after `prompt_ids`, or at the start of a text if there are none. (At
    the start some vocabularies do not show the space of the first word.) Bytes that are no UTF-8
    become U+FFFD, one per maximal invalid part, as the Unicode standard recommends (chapter 3.9);
    bytes that the prompt left unfinished are not completed.
    """

    __slots__ = ("_joiner", "_unfinished", "_utf8")

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Iterable[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._joiner = PieceJoiner(
            tokenizer.vocabulary,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )
        self._joiner.follow(prompt_ids)
        self._utf8 = _new_decoder(errors="replace")
        self._unfinished = False
        """The decoder waits for the rest of a character."""

    def push(self, ids: Sequence[int]) -> str:
        """Text that is certain after these ids. Never raises: an id that is no token gives no
        text."""
        if len(ids) == 1 and not self._unfinished:
            whole = self._joiner.whole(ids[0])
            if whole is not None:  # what most tokens are; joining and decoding takes longer
                return whole
        data = self._joiner.join(ids)
        if data.isascii() and not self._unfinished:  # most pieces; the decoder takes longer
            return data.decode("ascii")
        text = self._utf8.decode(data)
        self._unfinished = bool(self._utf8.getstate()[0])
        return text

    def finish(self) -> str:
        """What is left when no more ids come: U+FFFD for a character that was never completed, else
        nothing."""
        return self._utf8.decode(b"", final=True)
