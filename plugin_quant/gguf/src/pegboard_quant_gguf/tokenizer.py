"""The tokeniser inside a GGUF file, written as a ``tokenizer.json``.

Supported are byte-level BPE (``tokenizer.ggml.model`` = ``gpt2``) with the pre-tokenisers of
`pretokenizers`, and SentencePiece BPE (``llama``), see `sentencepiece`. A byte-level file that does
not say its pre-tokeniser is refused rather than guessed at: a wrong guess gives wrong ids without
any error.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard_quant_gguf.metadata import Metadata
from pegboard_quant_gguf.pretokenizers import PRETOKENIZERS, Pretokenizer
from pegboard_quant_gguf.sentencepiece import SPACE, Pieces, serialised_parts

__all__ = ["tokenizer_spec"]

_KEY = "tokenizer.ggml."
_NO_IDS = (0xFFFFFFFF, -1)
"""Written by some converters for "none"."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of ``tokenizer.ggml.token_type``."""
_NAMED_IDS = {
    "bos_token": ("bos_token_id",),
    "eos_token": ("eos_token_id",),
    "unk_token": ("unknown_token_id",),
    "sep_token": ("seperator_token_id", "separator_token_id"),
    "pad_token": ("padding_token_id",),
    "mask_token": ("mask_token_id",),
}
# "seperator" is how the format's specification spells it.
_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


_FRAME: dict[str, Any] = {"version": "1.0", "truncation": None, "padding": None}


@attrs.frozen
class _Vocabulary:
    """The tokens, and which of them are special whatever their type says."""

    tokens: Sequence[str]
    special: set[int]
    bos: int | None

    def bos_first(self) -> dict[str, Any] | None:
        """A post-processor that puts BOS in front, if there is one."""
        return None if self.bos is None else _bos_first(self.bos, self.tokens[self.bos])


def tokenizer_spec(metadata: Metadata, source: str) -> TokenizerSpec:
    """Build the specification from a file's metadata; `source` is the file, for errors.

    Raises `UnsupportedError` if there is no tokeniser or it is of a kind that is not supported,
    `CheckpointError` if its keys are malformed or contradict each other. BOS, padding and
    ``add_bos`` are None where the file does not say; nothing is defaulted.
    """
    return _Reader(metadata, source).spec()


@attrs.frozen
class _Reader:
    metadata: Metadata
    source: str

    def spec(self) -> TokenizerSpec:
        serialise = self._serialiser()
        tokens = self._tokens()
        found = {name: self._first_id(keys, tokens) for name, keys in _NAMED_IDS.items()}
        named = {name: token_id for name, token_id in found.items() if token_id is not None}
        ends = tuple(
            dict.fromkeys(i for key in _END_IDS if (i := self._id(key, tokens)) is not None)
        )
        bos = named.get("bos_token")
        parts = serialise(_Vocabulary(tokens, {*named.values(), *ends}, bos))
        return TokenizerSpec(
            # Escapes keep it ASCII: a string with one wide letter takes twice the room.
            json=json.dumps({**_FRAME, **parts}),
            source=self.source,
            vocab_size=len(tokens),
            bos_token_id=bos,
            eos_token_ids=ends,
            pad_token_id=named.get("pad_token"),
            add_bos=self.metadata.typed(_KEY + "add_bos_token", bool),
            add_eos=self.metadata.typed(_KEY + "add_eos_token", bool),
            special_tokens={name: tokens[token_id] for name, token_id in named.items()},
        )

    def _fault(self, text: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: {text}")

    def _unusable(self, text: str) -> UnsupportedError:
        return UnsupportedError(f"{self.source}: {text}")

    def _serialiser(self) -> Callable[[_Vocabulary], dict[str, Any]]:
        model = self.metadata.typed(_KEY + "model", str)
        if model is None:
            raise self._unusable(f"holds no tokeniser (key '{_KEY}model' is missing)")
        if model == "gpt2":
            return partial(self._byte_level, self._pretokenizer())
        if model == "llama":
            return self._sentence_piece
        raise self._unusable(
            f"its tokeniser is of kind {model!r}, which is not supported; supported: 'gpt2', "
            "'llama'"
        )

    def _pretokenizer(self) -> Pretokenizer:
        supported = ", ".join(repr(name) for name in PRETOKENIZERS)
        pre = self.metadata.typed(_KEY + "pre", str)
        if pre is None:
            raise self._unusable(
                f"key '{_KEY}pre' is missing, so how the tokeniser cuts words is unknown; write "
                "the key with its "
                f"right value (supported: {supported}) or give the tokeniser of the original model"
            )
        if pre not in PRETOKENIZERS:
            raise self._unusable(
                f"key '{_KEY}pre' is {pre!r}, which is not supported; supported: {supported}"
            )
        return PRETOKENIZERS[pre]

    def _tokens(self) -> tuple[str, ...]:
        tokens = self.metadata.array(_KEY + "tokens", str)
        if not tokens:
            raise self._fault(f"key '{_KEY}tokens' is missing or empty")
        if len(set(tokens)) != len(tokens):
            twice, count = Counter(tokens).most_common(1)[0]
            raise self._fault(f"key '{_KEY}tokens' holds {twice!r} {count} times")
        return tokens

    def _first_id(self, keys: Sequence[str], tokens: Sequence[str]) -> int | None:
        ids = (self._id(key, tokens) for key in keys)
        return next((token_id for token_id in ids if token_id is not None), None)

    def _id(self, key: str, tokens: Sequence[str]) -> int | None:
        value = self.metadata.typed(_KEY + key, int)
        if value is None or value in _NO_IDS:
            return None
        if not 0 <= value < len(tokens):
            raise self._fault(
                f"key '{_KEY}{key}' is {value}, outside the vocabulary of {len(tokens)} tokens"
            )
        return value

    def _merges(self) -> list[tuple[str, str]]:
        merges = self.metadata.array(_KEY + "merges", str)
        if merges is None:
            raise self._fault(f"key '{_KEY}merges' is missing; a byte-level BPE tokeniser needs it")
        pairs = []
        for number, merge in enumerate(merges):
            # The first part has at least one character, so the search starts behind it.
            place = merge.find(" ", 1)
            if not 0 < place < len(merge) - 1:
                raise self._fault(
                    f"element {number} of key '{_KEY}merges' is {merge!r}; two tokens are expected"
                )
            pairs.append((merge[:place], merge[place + 1 :]))
        return pairs

    def _byte_level(self, pre: Pretokenizer, vocabulary: _Vocabulary) -> dict[str, Any]:
        tokens = vocabulary.tokens
        kinds = self._kinds(tokens) or (NORMAL,) * len(tokens)
        self._check_kinds(tokens, kinds, UNUSED, "byte-level BPE")
        return {
            "added_tokens": _added_tokens(vocabulary, kinds),
            "normalizer": {"type": pre.normalizer} if pre.normalizer else None,
            "pre_tokenizer": pre.steps,
            "post_processor": vocabulary.bos_first() if pre.adds_bos else None,
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": pre.ignore_merges,
                "vocab": {token: token_id for token_id, token in enumerate(tokens)},
                "merges": self._merges(),
            },
        }

    def _sentence_piece(self, vocabulary: _Vocabulary) -> dict[str, Any]:
        kinds, scores = self._kinds(vocabulary.tokens), self.metadata.array(_KEY + "scores", float)
        for name, value in (("token_type", kinds), ("scores", scores)):
            if value is None or len(value) != len(vocabulary.tokens):
                raise self._fault(
                    f"key '{_KEY}{name}' has {len(value or ())} elements for "
                    f"{len(vocabulary.tokens)} tokens"
                )
        assert kinds is not None and scores is not None
        self._check_kinds(vocabulary.tokens, kinds, BYTE, "SentencePiece")
        # Text is compared with user-defined tokens before its spaces are replaced.
        tokens = [
            token.replace(SPACE, " ") if kind == USER_DEFINED else token
            for token, kind in zip(vocabulary.tokens, kinds, strict=True)
        ]
        unknown = self._id("unknown_token_id", tokens)
        if unknown is None and UNKNOWN in kinds:
            unknown = kinds.index(UNKNOWN)
        prefix = self.metadata.typed(_KEY + "add_space_prefix", bool, True)
        pieces = Pieces(tokens, scores, kinds, unknown, prefix)
        if (fault := pieces.fault()) is not None:
            raise self._fault(fault)
        added = _added_tokens(attrs.evolve(vocabulary, tokens=tokens), kinds)
        parts = serialised_parts(pieces)
        return {"added_tokens": added, "post_processor": vocabulary.bos_first(), **parts}

    def _kinds(self, tokens: Sequence[str]) -> tuple[int, ...] | None:
        kinds = self.metadata.array(_KEY + "token_type", int)
        if kinds and len(kinds) != len(tokens):
            raise self._fault(
                f"key '{_KEY}token_type' has {len(kinds)} elements for {len(tokens)} tokens"
            )
        return kinds

    def _check_kinds(
        self, tokens: Sequence[str], kinds: Sequence[int], most: int, model: str
    ) -> None:
        for token_id, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
            if not NORMAL <= kind <= most:
                raise self._fault(
                    f"token {token_id} ({token!r}) has type {kind}; 1 to {most} are allowed in "
                    f"{model}"
                )


def _added_tokens(vocabulary: _Vocabulary, kinds: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens that are found in text as they are written, before any cutting: control and
    user-defined ones."""
    added = []
    for token_id, (token, kind) in enumerate(zip(vocabulary.tokens, kinds, strict=True)):
        control = kind in (UNKNOWN, CONTROL) or token_id in vocabulary.special
        if control or kind == USER_DEFINED:
            added.append(_added_token(token_id, token, control))
    return added


def _added_token(token_id: int, token: str, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": token, **flags, "special": special}


def _bos_first(token_id: int, token: str) -> dict[str, Any]:
    bos, text = (
        {"SpecialToken": {"id": token, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    )
    second = {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "type": "TemplateProcessing",
        "single": [bos, text],
        "pair": [bos, text, second],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }
