"""From a token's entry in the vocabulary to the bytes it stands for.

A `tokenizer.json` names a *decoder*: the way token strings become text. Read as a rule for one
token at a time, a decoder is a function from token string to bytes, plus what is special at the
very start of a text (a marker of a word start is not shown there). With that, text can be put
together token by token, at constant cost and without ever cutting a character.

Texts equal those of the *tokenizers* library for every valid sequence. The one difference is
deliberate: where a run of byte tokens such as ``<0xE2>`` is no valid UTF-8, that library turns the
whole run into U+FFFD, even characters of it that are complete, which cannot be done while
streaming; here only the invalid part is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs

from pegboard.errors import UnsupportedError

__all__ = ["BYTE_LEVEL", "TokenCodec", "codec_from_decoder"]

TokenRule = Callable[[str], bytes]
"""A token's string in, its bytes out."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SUPPORTED = "ByteLevel, Metaspace, WordPiece, and sequences of Replace, ByteFallback, Fuse, Strip"


def _byte_level_alphabet() -> dict[str, int]:
    """Character to byte, as byte-level BPE writes bytes.

    Printable Latin-1 characters stand for themselves; the other bytes, in order, are moved to
    U+0100 and up (Radford et al. 2019, the GPT-2 tokeniser).
    """
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in set(shown)]
    alphabet = {chr(byte): byte for byte in shown}
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return alphabet


BYTE_LEVEL = _byte_level_alphabet()
"""Characters of byte-level BPE, and the bytes they stand for."""


@attrs.frozen
class TokenCodec:
    """How the strings of a vocabulary stand for bytes."""

    middle: TokenRule
    """Bytes of a token inside a text."""
    opening: TokenRule
    """Bytes of a token that is the first of a text."""
    strip: bytes = b""
    """A character removed at the start of a text …"""
    strip_count: int = 0
    """… up to this often."""
    byte_alphabet: bool = False
    """True if token strings are written in the alphabet of byte-level BPE."""

    @property
    def minds_start(self) -> bool:
        """True if a text's first token may read differently from the same token further on."""
        return self.strip_count > 0 or self.opening is not self.middle


def codec_from_decoder(decoder: Mapping[str, Any] | None, source: str) -> TokenCodec:
    """The codec for the ``decoder`` entry of a `tokenizer.json`; `source` is the file, for errors.

    Without a decoder, tokens are words with a space between them. Raises `UnsupportedError` naming
    a decoder that cannot be read as a rule for one token at a time.
    """
    if decoder is None:
        return TokenCodec(middle=_spaced_word, opening=str.encode)
    steps = _flatten(decoder)
    codec = _read_steps(steps)
    if codec is None:
        names = "+".join(str(step.get("type")) for step in steps)
        raise UnsupportedError(
            f"{source}: decoder {names!r} is not supported; supported are {_SUPPORTED}"
        )
    return codec


def _flatten(decoder: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for inner in decoder.get("decoders", ()) for step in _flatten(inner)]


@attrs.define
class _Reading:
    """What the steps read so far amount to."""

    replaces: list[tuple[str, str]] = attrs.field(factory=list)
    byte_fallback: bool = False
    fused: bool = False
    """The steps that follow see the whole text as one token."""
    middle: TokenRule | None = None
    opening: TokenRule | None = None
    strip: bytes = b""
    strip_count: int = 0


def _read_steps(steps: list[Mapping[str, Any]]) -> TokenCodec | None:
    reading = _Reading()
    for step in steps:
        reader = _READERS.get(str(step.get("type")))
        if reader is None or not reader(reading, step):
            return None
    middle = reading.middle or partial(_replaced, tuple(reading.replaces), reading.byte_fallback)
    opening = reading.opening or middle
    return TokenCodec(middle, opening, reading.strip, reading.strip_count, middle is _byte_level)


def _read_replace(reading: _Reading, step: Mapping[str, Any]) -> bool:
    pattern = step.get("pattern", {}).get("String")
    late = reading.fused or reading.byte_fallback or reading.middle is not None
    if not isinstance(pattern, str) or late:
        return False
    reading.replaces.append((pattern, str(step.get("content", ""))))
    return True


def _read_byte_fallback(reading: _Reading, step: Mapping[str, Any]) -> bool:
    reading.byte_fallback = True
    return not reading.fused and reading.middle is None


def _read_fuse(reading: _Reading, step: Mapping[str, Any]) -> bool:
    reading.fused = True
    return True


def _read_strip(reading: _Reading, step: Mapping[str, Any]) -> bool:
    reading.strip = str(step.get("content", " ")).encode()
    reading.strip_count = int(step.get("start", 0))
    return reading.fused and int(step.get("stop", 0)) == 0


def _read_byte_level(reading: _Reading, step: Mapping[str, Any]) -> bool:
    reading.middle = _byte_level
    return _ends_here(reading)


def _read_metaspace(reading: _Reading, step: Mapping[str, Any]) -> bool:
    mark = str(step.get("replacement", "▁"))
    reading.middle = partial(_replaced, ((mark, " "),), False)
    if step.get("prepend_scheme", "always") != "never" and step.get("add_prefix_space", True):
        reading.opening = partial(_replaced, ((mark, ""),), False)
    return _ends_here(reading)


def _read_word_piece(reading: _Reading, step: Mapping[str, Any]) -> bool:
    cleanup = bool(step.get("cleanup", True))
    reading.middle = partial(_word_piece, str(step.get("prefix", "##")), cleanup)
    reading.opening = partial(_tidied, cleanup)
    return _ends_here(reading)


def _ends_here(reading: _Reading) -> bool:
    """A complete rule stands alone: nothing before it, and what follows sees the whole text."""
    alone = not (reading.replaces or reading.byte_fallback or reading.fused)
    reading.fused = True
    return alone


_READERS: Mapping[str, Callable[[_Reading, Mapping[str, Any]], bool]] = {
    "ByteFallback": _read_byte_fallback,
    "ByteLevel": _read_byte_level,
    "Fuse": _read_fuse,
    "Metaspace": _read_metaspace,
    "Replace": _read_replace,
    "Strip": _read_strip,
    "WordPiece": _read_word_piece,
}


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_LEVEL[char] for char in token])
    except KeyError:  # not written in the byte alphabet: an added token, which is plain text
        return token.encode()


def _replaced(replaces: tuple[tuple[str, str], ...], byte_fallback: bool, token: str) -> bytes:
    for pattern, content in replaces:
        token = token.replace(pattern, content)
    byte = _BYTE_TOKEN.fullmatch(token) if byte_fallback else None
    return bytes([int(byte[1], 16)]) if byte else token.encode()


def _spaced_word(token: str) -> bytes:
    return b" " + token.encode()


def _word_piece(prefix: str, cleanup: bool, token: str) -> bytes:
    return _tidied(cleanup, token[len(prefix) :] if token.startswith(prefix) else " " + token)


_CLEANUP = (
    *((f" {mark}", mark) for mark in (".", "?", "!", ",")),
    (" ' ", "'"),
    *((f" {ending}", ending) for ending in ("n't", "'m")),
    (" do not", " don't"),
    *((f" {ending}", ending) for ending in ("'s", "'ve", "'re")),
)


def _tidied(cleanup: bool, text: str) -> bytes:
    """WordPiece's own tidying: no space before punctuation and English contractions."""
    for pattern, content in _CLEANUP if cleanup else ():
        text = text.replace(pattern, content)
    return text.encode()
