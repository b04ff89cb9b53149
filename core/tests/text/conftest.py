"""Small tokenisers, made on the spot, one for each way in which tokens stand for bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.text.codec import BYTE_LEVEL
from pegboard.text.tokenizer import Tokenizer

BOS, EOS = "<s>", "</s>"


def added(token_id: int, content: str, special: bool = True) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, "special": special, **flags}


def bos_post_processor(bos_id: int) -> dict[str, Any]:
    return {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": BOS, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [bos_id], "tokens": [BOS]}},
    }


def byte_level_json(extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Ids 0–255 are the bytes, then come `extra` tokens (plain text), then BOS, EOS and one
    ordinary added token."""
    char_of = {byte: char for char, byte in BYTE_LEVEL.items()}
    vocab = {char_of[byte]: byte for byte in range(256)}
    for text in extra:
        vocab.setdefault("".join(char_of[byte] for byte in text.encode()), len(vocab))
    count = len(vocab)
    tokens = [added(count, BOS), added(count + 1, EOS), added(count + 2, "<café>", special=False)]
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
        "ignore_merges": True,
        "vocab": vocab, "merges": [],
    }  # fmt: skip
    level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": model,
    }  # fmt: skip


def byte_fallback_json(words: tuple[str, ...], decoder: dict[str, Any]) -> dict[str, Any]:
    """Ids: unknown, BOS, EOS, the 256 byte tokens from 3 on, then `words`."""
    vocab = {"<unk>": 0, BOS: 1, EOS: 2}
    for token in (*(f"<0x{byte:02X}>" for byte in range(256)), *words):
        vocab[token] = len(vocab)
    model: dict[str, Any] = {
        "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
        "vocab": vocab, "merges": [],
    }  # fmt: skip
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(0, "<unk>"), added(1, BOS), added(2, EOS)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": None, "post_processor": None, "decoder": decoder, "model": model,
    }  # fmt: skip


LLAMA_DECODER = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}
WORDS = ("▁", "▁▁", "▁Hello", "▁world", "ing", "é", "日本", "a", "b", "H", "▁a")


def spec_of(content: dict[str, Any], **fields: Any) -> TokenizerSpec:
    ids = {token["content"]: token["id"] for token in content["added_tokens"]}
    size = max(*content["model"]["vocab"].values(), *ids.values()) + 1
    fields = {"bos_token_id": ids.get(BOS), "eos_token_ids": (ids[EOS],), **fields}
    return TokenizerSpec(json=json.dumps(content), source="toy.json", vocab_size=size, **fields)


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Bytes 0–255, then BOS 256, EOS 257, an ordinary added token 258."""
    return Tokenizer.from_spec(spec_of(byte_level_json()))


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """Unknown 0, BOS 1, EOS 2, bytes 3–258, words from 259 on; the first space of a text is not
    shown."""
    return Tokenizer.from_spec(spec_of(byte_fallback_json(WORDS, LLAMA_DECODER)))


@pytest.fixture(scope="session")
def make_byte_level() -> Callable[..., Tokenizer]:
    """A byte-level tokeniser with further tokens: ``make(extra=(…), bos_in_file=True,
    add_bos=…)``."""

    def make(extra: tuple[str, ...] = (), bos_in_file: bool = False, **fields: Any) -> Tokenizer:
        content = byte_level_json(extra)
        if bos_in_file:
            content["post_processor"] = bos_post_processor(content["added_tokens"][0]["id"])
        return Tokenizer.from_spec(spec_of(content, **fields))

    return make


@pytest.fixture(scope="session")
def make_from_parts() -> Callable[..., Tokenizer]:
    """A word tokeniser with any decoder: ``make(words, decoder)``; ids count the words, then BOS
    and EOS."""

    def make(words: tuple[str, ...], decoder: dict[str, Any] | None) -> Tokenizer:
        vocab = {word: place for place, word in enumerate(words)}
        content = byte_level_json()
        content["model"] = {"type": "WordLevel", "vocab": vocab, "unk_token": words[0]}
        content["pre_tokenizer"] = {"type": "WhitespaceSplit"}
        content["added_tokens"] = [added(len(words), BOS), added(len(words) + 1, EOS)]
        content["decoder"] = decoder
        return Tokenizer.from_spec(spec_of(content))

    return make
