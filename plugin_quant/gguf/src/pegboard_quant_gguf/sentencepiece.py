"""SentencePiece BPE vocabularies (``tokenizer.ggml.model`` = ``llama``) as a serialised tokeniser.

Such a vocabulary has no list of merges. Encoding joins, again and again, the two neighbours whose
joint text is the token with the highest score, the leftmost of equals (Kudo and Richardson 2018).
A tokeniser with merges does the same with the merges ranked by the score of what they make: every
way of cutting a token into two tokens is a merge. Ranks cannot say "the leftmost" where merges of
one score overlap. Merges grow a text from the left, so among equals the one with the longer left
part goes first: ``(aa, a)`` before ``(a, a)``. That gives the same for runs of one character (real
vocabularies have tokens of one score for runs of spaces); for other overlapping tokens of one score
it may differ.

Spaces are written ``▁``. A character that is no token becomes one token per byte, ``<0xE2>``. Texts
of special and user-defined tokens are cut out first. With ``add_space_prefix`` (the default of this
kind) every stretch of text between them begins with one more space.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from typing import Any

import attrs

__all__ = ["SPACE", "Pieces", "serialised_parts"]

SPACE = "▁"
NORMAL, UNUSED, BYTE = 1, 5, 6
"""The values of ``tokenizer.ggml.token_type`` that matter here."""
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


@attrs.frozen
class Pieces:
    """A vocabulary; the three sequences have one element per token."""

    tokens: Sequence[str]
    scores: Sequence[float]
    kinds: Sequence[int]
    unknown: int | None
    """Id of the token for what cannot be written, if there is one."""
    space_prefix: bool

    def fault(self) -> str | None:
        """What is wrong with the vocabulary, in words that follow the file's name, or None."""
        for token_id, score in enumerate(self.scores):
            if not isfinite(score):
                return f"token {token_id} ({self.tokens[token_id]!r}) has the score {score}"
        named = [token for token, kind in zip(self.tokens, self.kinds, strict=True) if kind == BYTE]
        bad = next((token for token in named if not _BYTE_TOKEN.fullmatch(token)), None)
        if bad is not None:
            return f"token {bad!r} is marked as a byte; such tokens are called <0x00> to <0xFF>"
        if len(named) not in (0, 256):
            return f"its tokeniser has {len(named)} byte tokens; all 256 or none are allowed"
        if not named and self.unknown is None:
            return "its tokeniser has neither byte tokens nor an unknown token"
        return None


def serialised_parts(pieces: Pieces) -> dict[str, Any]:
    """The entries ``normalizer``, ``pre_tokenizer``, ``decoder`` and ``model`` of a
    ``tokenizer.json``."""
    escape = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = {"type": "Prepend", "prepend": SPACE}
    steps = [prepend, escape] if pieces.space_prefix else [escape]
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": _decoder(pieces.space_prefix),
        "model": _model(pieces),
    }


def _decoder(space_prefix: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if space_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _model(pieces: Pieces) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None if pieces.unknown is None else pieces.tokens[pieces.unknown],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": BYTE in pieces.kinds,
        "ignore_merges": False,
        "vocab": {token: token_id for token_id, token in enumerate(pieces.tokens)},
        "merges": _merges(pieces),
    }


def _merges(pieces: Pieces) -> list[tuple[str, str]]:
    """All merges, the first to be made first."""
    scores = {
        token: score
        for token, score, kind in zip(pieces.tokens, pieces.scores, pieces.kinds, strict=True)
        if kind in (NORMAL, UNUSED)
    }
    ranked = []
    for token, score in scores.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in scores and right in scores:
                ranked.append((-score, -cut, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]
