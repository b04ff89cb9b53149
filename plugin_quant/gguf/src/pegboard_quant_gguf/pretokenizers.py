"""How text is cut into words before byte-pair merging, by the value of ``tokenizer.ggml.pre``.

The patterns are part of each vocabulary's definition: another one gives other ids for the same
text.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import attrs

__all__ = ["PRETOKENIZERS", "Pretokenizer"]

# Letters with an optional leading non-letter; runs of other symbols with their line ends; line
# ends; spaces. Digits come in groups of the length that the vocabulary was trained with.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def _cut(pattern: str, *, use_regex: bool) -> dict[str, Any]:
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
    return {"type": "Sequence", "pretokenizers": [split, _byte_level(use_regex)]}


@attrs.frozen
class Pretokenizer:
    """What a value of ``tokenizer.ggml.pre`` stands for."""

    steps: dict[str, Any]
    """Entry ``pre_tokenizer`` of a ``tokenizer.json``."""
    ignore_merges: bool = False
    """A word that is a token is taken whole, whatever the merges say."""
    adds_bos: bool = False
    """BOS comes first where the file does not say."""
    normalizer: str | None = None
    """Unicode normal form applied first."""


# GPT-2's own pattern is built into the ByteLevel step.
_GPT2 = Pretokenizer(_byte_level(use_regex=True))
_LLAMA3 = Pretokenizer(
    _cut(_WORDS.format(digits=r"\p{N}{1,3}"), use_regex=False), ignore_merges=True, adds_bos=True
)
_QWEN2 = Pretokenizer(_cut(_WORDS.format(digits=r"\p{N}"), use_regex=False), normalizer="NFC")
_SMOLLM = Pretokenizer(_cut(r"\p{N}", use_regex=True))

PRETOKENIZERS = MappingProxyType(
    {
        "gpt-2": _GPT2,
        "gpt2": _GPT2,
        "llama-bpe": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama3": _LLAMA3,
        "qwen2": _QWEN2,
        "smollm": _SMOLLM,
    }
)
"""Supported values."""
