"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs
import msgspec
import tokenizers

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.tokenizer import TokenizerContext
from pegboard.errors import CheckpointError, RequestError
from pegboard.text.codec import codec_from_decoder
from pegboard.text.coverage import Model, longest_token, shrinkage
from pegboard.text.detokenizer import IncrementalDetokenizer
from pegboard.text.pieces import PieceJoiner, Vocabulary

__all__ = ["Tokenizer", "build_own"]

LONG_TEXT = 2000
"""Characters from which on encoding takes a millisecond or more."""


class _AddedToken(msgspec.Struct):
    id: int
    content: str
    special: bool = False
    lstrip: bool = False
    rstrip: bool = False


class _SerialisedParts(msgspec.Struct):
    """The parts of a `tokenizer.json` that are needed beside the library's own reading of it."""

    added_tokens: list[_AddedToken] = []
    decoder: dict[str, Any] | None = None
    model: Model = msgspec.field(default_factory=Model)
    normalizer: dict[str, Any] | None = None
    pre_tokenizer: dict[str, Any] | None = None

    @property
    def shrinkage(self) -> int | None:
        """See `pegboard.text.coverage.shrinkage`."""
        takes_spaces = any(token.lstrip or token.rstrip for token in self.added_tokens)
        return shrinkage(self.model, self.normalizer, self.pre_tokenizer, takes_spaces)


@attrs.frozen
class _Frame:
    """Ids put around a text: what the post-processor of the file adds, as the specification
    corrects it."""

    head: tuple[int, ...]
    tail: tuple[int, ...]


class Tokenizer:
    """Encodes and decodes with one vocabulary. Immutable, safe to use from several threads.

    Beginning of sequence (BOS): `TokenizerSpec.add_bos` says whether `encode` puts it in front;
    where it is None, the post-processor of the file decides. None is added to a text that begins
    with it already, and one that the caller wrote is never taken away. The same holds for the end
    of sequence (EOS) at the end and `add_eos`.
    """

    def __init__(
        self,
        spec: TokenizerSpec,
        backend: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        parts: _SerialisedParts,
    ) -> None:
        self.spec = spec
        self._parts = parts
        self.vocabulary = vocabulary
        self._backend = backend
        self._frame = _frame(spec, backend)

    @classmethod
    def from_spec(cls, spec: TokenizerSpec) -> Tokenizer:
        """Build the tokeniser.

        Raises `CheckpointError` if the serialisation is malformed, its ids do not agree with the
        library's, or an identifier of the specification is missing or outside the vocabulary;
        `UnsupportedError` for a decoder that cannot be used while streaming.
        """
        backend, parts = _read(spec)
        _check_ids(spec, backend, parts)
        special = {token.id for token in parts.added_tokens if token.special}
        special.update(spec.eos_token_ids)
        special.update(i for i in (spec.bos_token_id, spec.pad_token_id) if i is not None)
        vocabulary = Vocabulary(
            codec_from_decoder(parts.decoder, spec.source),
            _token_lookup(backend),
            [token.id for token in parts.added_tokens],
            special,
        )
        return cls(spec, backend, vocabulary, parts)

    @property
    def vocab_size(self) -> int:
        """Number of ids of the vocabulary, added tokens included."""
        return self.spec.vocab_size

    @cached_property
    def longest_token(self) -> int | None:
        """Most characters of a text that one token stands for, so that a text has at least
        ``len(text) / longest_token`` tokens; None where nothing bounds that."""
        shrinks = self._parts.shrinkage
        if shrinks is None:
            return None
        longest = longest_token(self._backend.get_vocab(), self._parts.model.byte_fallback)
        return None if longest is None else shrinks * longest

    @property
    def bos_token_id(self) -> int | None:
        return self.spec.bos_token_id

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.spec.eos_token_ids

    @property
    def pad_token_id(self) -> int | None:
        return self.spec.pad_token_id

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """Texts that chat templates may name, e.g. ``{"bos_token": "<s>"}``."""
        return self.spec.special_tokens

    @property
    def adds_bos(self) -> bool:
        """True if a text is to begin with BOS."""
        head = self._frame.head
        return bool(head) and head[0] == self.spec.bos_token_id

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out: special added tokens, BOS, EOS and padding."""
        return self.vocabulary.special

    def is_special(self, token_id: int) -> bool:
        """True if `token_id` is one of `special_ids`."""
        return token_id in self.vocabulary.special

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, with BOS and whatever else belongs around a text unless
        `add_special_tokens` is False.

        Special tokens written out in `text` are read as such. An empty text gives no ids beside the
        added ones. Raises `RequestError` if `text` is no string or holds half of a surrogate pair.
        """
        ids = self._encode_plain(text)
        return self._framed(ids) if add_special_tokens else ids

    def encode_batch(
        self, texts: Sequence[str], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """`encode` of many texts, in parallel."""
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, ValueError):
            return [self.encode(text, add_special_tokens) for text in texts]  # names the bad one
        plain = [encoding.ids for encoding in encodings]
        return [self._framed(ids) for ids in plain] if add_special_tokens else plain

    def encode_chat(self, text: str) -> list[int]:
        """Ids of a rendered chat template.

        A template writes its special tokens itself, so none are added, but for one: BOS, if a text
        is to begin with it (`adds_bos`) and the template did not write it.
        """
        ids = self._encode_plain(text)
        bos = self.spec.bos_token_id
        if bos is None or not self.adds_bos or ids[:1] == [bos]:
            return ids
        return [bos, *ids]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; ids that are no token give none, invalid bytes give U+FFFD."""
        joiner = PieceJoiner(self.vocabulary, skip_special_tokens=skip_special_tokens)
        return joiner.join(ids).decode(errors="replace")

    def detokenizer(
        self,
        prompt_ids: Iterable[int] = (),
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> IncrementalDetokenizer:
        """Decodes a text that follows `prompt_ids` while its ids come."""
        return IncrementalDetokenizer(
            self,
            prompt_ids,
            skip_special_tokens=skip_special_tokens,
            spaces_between_special_tokens=spaces_between_special_tokens,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for inside a text; they need not be whole characters.

        For a special token, the bytes of its name. Empty for an id that is no token.
        """
        return self.vocabulary.pieces[token_id]

    def id_to_token(self, token_id: int) -> str | None:
        """The token's string as the vocabulary has it (``"Ġthe"``, ``"▁the"``), or None if there is
        no such id."""
        return self.vocabulary.token_of(token_id)

    def token_to_id(self, token: str) -> int | None:
        """The id of a token's string, or None if the vocabulary does not have it."""
        return self._backend.token_to_id(token)

    def _encode_plain(self, text: str) -> list[int]:
        if not isinstance(text, str):
            raise RequestError(
                f"prompt must be a string, not {type(text).__name__}", field="prompt"
            )
        try:
            if len(text) < LONG_TEXT:
                return self._backend.encode(text, add_special_tokens=False).ids
            # A batch, unlike a text alone, is encoded without holding up other threads.
            return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except (
            TypeError,
            ValueError,
        ) as error:  # what the library raises for text that is not UTF-8
            raise RequestError(
                f"prompt is not valid Unicode text: {error}", field="prompt"
            ) from error

    def _framed(self, ids: list[int]) -> list[int]:
        head, tail = self._frame.head, self._frame.tail
        if head and head[0] == self.spec.bos_token_id and ids[:1] == [head[0]]:
            head = head[1:]
        if tail and tail[-1] in self.spec.eos_token_ids and ids[-1:] == [tail[-1]]:
            tail = tail[:-1]
        return [*head, *ids, *tail]


def build_own(ctx: TokenizerContext) -> Tokenizer:
    """Entry of the core's descriptor ``hf``."""
    return Tokenizer.from_spec(ctx.spec)


def _read(spec: TokenizerSpec) -> tuple[tokenizers.Tokenizer, _SerialisedParts]:
    try:
        parts = msgspec.json.decode(spec.json, type=_SerialisedParts)
        backend = tokenizers.Tokenizer.from_str(spec.json)
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(
            f"{spec.source}: not a tokeniser that can be read: {error}"
        ) from error
    # The file may carry settings of a training run; a prompt is never cut or padded here.
    backend.no_truncation()
    backend.no_padding()
    return backend, parts


def _check_ids(spec: TokenizerSpec, backend: tokenizers.Tokenizer, parts: _SerialisedParts) -> None:
    for token in parts.added_tokens:
        actual = backend.token_to_id(token.content)
        if actual != token.id:
            raise CheckpointError(
                f"{spec.source}: added token {token.content!r} is stored with id {token.id}, "
                f"but gets id {actual}; added tokens must follow the vocabulary without a gap"
            )
    named = [("bos_token_id", spec.bos_token_id), ("pad_token_id", spec.pad_token_id)]
    for name, value in (*named, *(("eos_token_ids", i) for i in spec.eos_token_ids)):
        if value is not None and not 0 <= value < spec.vocab_size:
            raise CheckpointError(
                f"{spec.source}: {name} {value} is outside the vocabulary of {spec.vocab_size}"
            )
    if spec.add_bos and spec.bos_token_id is None:
        raise CheckpointError(
            f"{spec.source}: a BOS token is to be added, but the tokeniser names none"
        )
    if spec.add_eos and not spec.eos_token_ids:
        raise CheckpointError(
            f"{spec.source}: an EOS token is to be added, but the tokeniser names none"
        )


def _token_lookup(backend: tokenizers.Tokenizer) -> Any:
    def token_of(token_id: int) -> str | None:
        # The library takes 32-bit ids and raises for others.
        return backend.id_to_token(token_id) if 0 <= token_id < 2**32 else None

    return token_of


def _frame(spec: TokenizerSpec, backend: tokenizers.Tokenizer) -> _Frame:
    head, tail = _post_processor_frame(backend)
    bos = spec.bos_token_id
    if spec.add_bos is not None:
        head = head[1:] if head[:1] == (bos,) else head
        head = (bos, *head) if spec.add_bos and bos is not None else head
    if spec.add_eos is not None:
        tail = tail[:-1] if tail and tail[-1] in spec.eos_token_ids else tail
        tail = (*tail, spec.eos_token_ids[0]) if spec.add_eos else tail
    return _Frame(head, tail)


def _post_processor_frame(backend: tokenizers.Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the file's post-processor puts before and after any text, read off a short one."""
    for probe in ("a", "0", ".", " ", "\n", "<unk>"):
        encoding = backend.encode(probe, add_special_tokens=True)
        if 0 in encoding.special_tokens_mask:
            mask = encoding.special_tokens_mask
            start, stop = mask.index(0), len(mask) - mask[::-1].index(0)
            return tuple(encoding.ids[:start]), tuple(encoding.ids[stop:])
    # No probe is in this vocabulary; all that is added to an empty text is taken to stand in front.
    return tuple(backend.encode("", add_special_tokens=True).ids), ()
