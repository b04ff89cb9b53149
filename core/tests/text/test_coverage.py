"""How much text a token can stand for; the encoding itself is the judge."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.engine.inputs import InputProcessor
from pegboard.errors import RequestError
from pegboard.text.tokenizer import Tokenizer

TEXTS = st.text(alphabet="aé日 \n\u0301e\U0001f600H<>", max_size=60)


def changed(tokenizer: Tokenizer, **parts: Any) -> Tokenizer:
    """The tokeniser with other parts in its file."""
    content = {**json.loads(tokenizer.spec.json), **parts}
    return Tokenizer.from_spec(attrs.evolve(tokenizer.spec, json=json.dumps(content)))


def covered(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.longest_token is not None
    assert len(text) <= tokenizer.longest_token * len(tokenizer.encode(text, False))


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_no_token_stands_for_more_than_is_said(
    text: str, byte_level: Tokenizer, byte_fallback: Tokenizer
) -> None:
    covered(byte_level, text)
    covered(byte_fallback, text)
    covered(changed(byte_level, normalizer={"type": "NFC"}), text)


def test_the_longest_token_counts(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    assert byte_level.longest_token == len("<café>")
    assert byte_fallback.longest_token == max(len("▁Hello"), len("<0x00>"))
    assert changed(byte_level, normalizer={"type": "NFC"}).longest_token == 4 * len("<café>")


LOSSY: dict[str, dict[str, Any]] = {
    "spaces are stripped": {
        "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}
    },
    "runs become one": {
        "normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}
    },
    "two become one": {
        "normalizer": {"type": "Replace", "pattern": {"String": "  "}, "content": " "}
    },
    "words are cut at spaces": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            ],
        }
    },
    "what matches is removed": {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"String": " "},
                    "behavior": "Removed",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
            ],
        }
    },
    "nothing makes bytes of characters": {"pre_tokenizer": None},
}


@pytest.mark.parametrize("parts", LOSSY.values(), ids=LOSSY)
def test_nothing_is_said_where_text_may_vanish(
    parts: dict[str, Any], byte_level: Tokenizer
) -> None:
    assert changed(byte_level, **parts).longest_token is None


def test_nothing_is_said_where_an_added_token_takes_in_spaces(byte_level: Tokenizer) -> None:
    tokens = json.loads(byte_level.spec.json)["added_tokens"]
    tokens[-1]["lstrip"] = True
    wide = changed(byte_level, added_tokens=tokens)
    assert len(wide.encode(" " * 500 + "<café>", False)) == 1
    assert wide.longest_token is None


def test_nothing_is_said_of_words_or_where_a_byte_has_no_name(
    make_from_parts: Callable[..., Tokenizer], byte_fallback: Tokenizer
) -> None:
    words = make_from_parts(("<unk>", "a"), {"type": "WordPiece", "prefix": "##", "cleanup": False})
    assert len(words.encode("x" * 600, False)) == 1
    assert words.longest_token is None
    model = json.loads(byte_fallback.spec.json)["model"]
    model["vocab"]["<0xE6!"] = model["vocab"].pop("<0xE6>")
    assert changed(byte_fallback, model=model).longest_token is None


def processor(tokenizer: Any) -> InputProcessor:
    import random

    return InputProcessor(tokenizer, tokenizer.vocab_size, 8, (), random.Random(0))


def test_only_a_prompt_that_cannot_fit_is_refused_unread(
    byte_level: Tokenizer, make_from_parts: Callable[..., Tokenizer]
) -> None:
    most = 8 * len("<café>")
    processor(byte_level).check_length("a" * most)
    with pytest.raises(RequestError, match="it has 49 characters, but the context holds 8 tokens"):
        processor(byte_level).check_length("a" * (most + 1))
    words = make_from_parts(("<unk>", "a"), {"type": "WordPiece", "prefix": "##", "cleanup": False})
    assert processor(words).tokenise("x" * 600).ids == [0]
