"""How much text one token can stand for: what bounds the tokens of a text from below, unread.

Most tokenisers keep every character, so that a token covers no more of a text than its own name is
long. Those that drop text (words split at spaces that are lost, spaces taken in by a neighbour) or
put one token in the place of a run that they do not know cover any length, and have no bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from pegboard.text.codec import BYTE_LEVEL

__all__ = ["Model", "Steps", "longest_token", "shrinkage"]

_NFC_SHRINKS = 4
"""Characters of which canonical composition makes one, at most: a letter and three marks, and a
syllable of Hangul has three parts (Unicode, UAX 15)."""

Steps = Mapping[str, Any]
"""A normaliser or pre-tokeniser, as a ``tokenizer.json`` has it."""


class Model(msgspec.Struct):
    """What is needed of the model in a ``tokenizer.json``."""

    type: str = "BPE"
    byte_fallback: bool = False


def shrinkage(
    model: Model, normalizer: Steps | None, cutter: Steps | None, takes_spaces: bool
) -> int | None:
    """Characters of a text that may become one on the way to the model; None if some may vanish.

    `takes_spaces`: an added token takes in the spaces around it.
    """
    cutters = list(_flat(cutter, "pretokenizers"))
    bytewise = model.byte_fallback or any(step.get("type") == "ByteLevel" for step in cutters)
    if model.type != "BPE" or not bytewise or takes_spaces or not all(map(_cuts_only, cutters)):
        return None
    return _shrinkage(list(_flat(normalizer, "normalizers")))


def longest_token(names: Collection[str], byte_fallback: bool) -> int | None:
    """Characters of the longest of a vocabulary's names, each of which stands for no more of a
    text; None if a byte has no name, so that text may be lost."""
    bytes_of = [f"<0x{i:02X}>" for i in range(256)] if byte_fallback else list(BYTE_LEVEL)
    if any(name not in names for name in bytes_of):
        return None
    return max(map(len, names))


def _cuts_only(step: Steps) -> bool:
    kind = step.get("type")
    if kind in ("Split", "Punctuation"):
        return bool(step.get("behavior", "Isolated") != "Removed")
    return kind in ("ByteLevel", "Digits", "Metaspace", "UnicodeScripts")


def _shrinkage(steps: Sequence[Steps]) -> int | None:
    factor = 1
    for step in steps:
        kind = step.get("type")
        if kind == "NFC":
            factor *= _NFC_SHRINKS
        elif kind == "Replace":
            pattern = (step.get("pattern") or {}).get("String")
            if pattern is None or len(step.get("content", "")) < len(pattern):
                return None
        elif kind not in ("Prepend", "NFD"):
            return None
    return factor


def _flat(step: Steps | None, inner: str) -> Iterator[Steps]:
    """A step or, of a sequence, its steps."""
    if step is None:
        return
    if step.get("type") == "Sequence":
        for part in step.get(inner) or ():
            yield from _flat(part, inner)
    else:
        yield step
