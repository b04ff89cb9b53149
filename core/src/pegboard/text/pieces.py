"""Joining the bytes of tokens to the bytes of a text, at constant cost per token."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from pegboard.text.codec import TokenCodec

__all__ = ["PieceJoiner", "PieceTable", "TextTable", "Vocabulary"]


class PieceTable(dict[int, bytes]):
    """Bytes by token id, filled in as ids are met: most of a large vocabulary is never used."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token_id: int) -> bytes:
        piece = self._make(token_id)
        self[token_id] = piece
        return piece


class TextTable(dict[int, "str | None"]):
    """Texts by token id, of the tokens that are whole characters; None for others."""

    def __init__(self, pieces: PieceTable) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._pieces[token_id].decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


class Vocabulary:
    """What the ids of a tokeniser stand for. Shared by all texts, safe to use from several threads.

    `token_of` gives a token's string or None where the id has none: rows that only pad an embedding
    table. They, and ids that no vocabulary has, stand for no text. `added` are ids of tokens that
    were added to the base vocabulary.
    """

    def __init__(
        self,
        codec: TokenCodec,
        token_of: Callable[[int], str | None],
        added: Collection[int],
        special: Collection[int],
    ) -> None:
        self.codec = codec
        self.token_of = token_of
        self.special = frozenset(special)
        self._added = frozenset(added)
        self.pieces = PieceTable(self._piece)
        """Bytes of each token inside a text."""
        self.shown = PieceTable(self._shown)
        """The same, special tokens standing for nothing."""
        self.texts = TextTable(self.pieces)
        self.shown_texts = TextTable(self.shown)

    def opening(self, token_id: int) -> bytes:
        """Bytes of a token that begins a text."""
        token = self.token_of(token_id)
        return b"" if token is None else self._readable(token_id, token, self.codec.opening(token))

    def bare(self, token_id: int) -> bytes:
        """Bytes of a token's own string, without a space that the codec puts before it."""
        return (self.token_of(token_id) or "").encode()

    def _piece(self, token_id: int) -> bytes:
        token = self.token_of(token_id)
        return b"" if token is None else self._readable(token_id, token, self.codec.middle(token))

    def _shown(self, token_id: int) -> bytes:
        return b"" if token_id in self.special else self.pieces[token_id]

    def _readable(self, token_id: int, token: str, piece: bytes) -> bytes:
        """An added token is plain text: one whose letters are no text in the byte alphabet stands
        for itself."""
        if not (self.codec.byte_alphabet and token_id in self._added):
            return piece
        try:
            piece.decode()
        except UnicodeDecodeError:
            return token.encode()
        return piece


class PieceJoiner:
    """Gives the bytes of one text as its ids come.

    `spaces_between_special_tokens=False` leaves out the space that some vocabularies (words, word
    pieces) show between two special tokens that follow one another.
    """

    __slots__ = (
        "_after_special",
        "_first",
        "_settled",
        "_skip",
        "_spaces",
        "_strip",
        "_table",
        "_texts",
        "_vocabulary",
    )

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        self._spaces = spaces_between_special_tokens
        self._table = vocabulary.shown if skip_special_tokens else vocabulary.pieces
        self._texts = vocabulary.shown_texts if skip_special_tokens else vocabulary.texts
        self._first = True
        self._after_special = False
        self._strip = vocabulary.codec.strip_count
        self._settled = spaces_between_special_tokens and not vocabulary.codec.minds_start

    def follow(self, context: Iterable[int]) -> None:
        """Take the text as a continuation of `context` (ids), whose own bytes are not given.

        Only as much of the context is read as it takes to know that the text does not start here.
        """
        for token_id in context:
            if self._settled or not (self._first or self._strip):
                return
            self._careful(token_id)

    def join(self, ids: Sequence[int]) -> bytes:
        """Bytes of the next tokens; ids without a token give none."""
        if self._settled:
            table = self._table
            return b"".join([table[token_id] for token_id in ids])
        return b"".join([self._careful(token_id) for token_id in ids])

    def whole(self, token_id: int) -> str | None:
        """The text of the next token, if that is whole characters and depends on nothing before;
        where it is None, the token is still to be joined."""
        return self._texts[token_id] if self._settled else None

    def _careful(self, token_id: int) -> bytes:
        """One token where the start of the text, or a neighbouring special token, may matter."""
        vocabulary = self._vocabulary
        special = token_id in vocabulary.special
        if (special and self._skip) or vocabulary.token_of(token_id) is None:
            return b""
        if self._first:
            piece = vocabulary.opening(token_id)
        elif special and self._after_special and not self._spaces:
            piece = vocabulary.bare(token_id)
        else:
            piece = self._table[token_id]
        self._first, self._after_special = False, special
        piece = self._stripped(piece)
        self._settled = self._spaces and not self._strip
        return piece

    def _stripped(self, piece: bytes) -> bytes:
        unwanted = self._vocabulary.codec.strip
        while self._strip and unwanted and piece.startswith(unwanted):
            piece = piece[len(unwanted) :]
            self._strip -= 1
        if piece:
            self._strip = 0
        return piece
