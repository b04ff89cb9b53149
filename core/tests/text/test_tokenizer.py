"""Encoding puts in what is wanted, decoding gives real bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError, RequestError
from pegboard.text.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]
BOS, EOS = 256, 257
A = [0x41]


@pytest.mark.parametrize(
    ("bos_in_file", "add_bos", "wanted"),
    [
        (False, None, False), (False, False, False), (False, True, True),
        (True, None, True), (True, False, False), (True, True, True),
    ],
)  # fmt: skip
class TestO32:
    """One BOS where it is wanted, none where it is not, and what the text brings along is left
    alone."""

    def test_completion(
        self, make_byte_level: Make, bos_in_file: bool, add_bos: Any, wanted: bool
    ) -> None:
        tokenizer = make_byte_level(bos_in_file=bos_in_file, add_bos=add_bos)
        assert tokenizer.adds_bos is wanted
        assert tokenizer.encode("A") == ([BOS] if wanted else []) + A
        assert tokenizer.encode("A", add_special_tokens=False) == A
        assert tokenizer.encode("<s>A") == [BOS, *A]
        assert tokenizer.encode("<s><s>A") == [BOS, BOS, *A]

    def test_chat(
        self, make_byte_level: Make, bos_in_file: bool, add_bos: Any, wanted: bool
    ) -> None:
        tokenizer = make_byte_level(bos_in_file=bos_in_file, add_bos=add_bos)
        assert tokenizer.encode_chat("A") == ([BOS] if wanted else []) + A
        assert tokenizer.encode_chat("<s>A") == [BOS, *A]

    def test_o11_an_empty_text(
        self, make_byte_level: Make, bos_in_file: bool, add_bos: Any, wanted: bool
    ) -> None:
        tokenizer = make_byte_level(bos_in_file=bos_in_file, add_bos=add_bos)
        assert tokenizer.encode("") == ([BOS] if wanted else [])
        assert tokenizer.encode_batch(["A", ""]) == [tokenizer.encode("A"), tokenizer.encode("")]


def test_o32_without_a_bos_id_none_is_made_up(make_byte_level: Make) -> None:
    tokenizer = make_byte_level(bos_token_id=None)
    assert not tokenizer.adds_bos and tokenizer.encode("A") == A == tokenizer.encode_chat("A")
    with pytest.raises(
        CheckpointError, match=r"toy\.json: a BOS token is to be added, but .* none"
    ):
        make_byte_level(bos_token_id=None, add_bos=True)


def test_eos_is_added_once_if_asked_for(make_byte_level: Make) -> None:
    tokenizer = make_byte_level(add_eos=True)
    assert tokenizer.encode("A") == [*A, EOS] == tokenizer.encode("A</s>")
    assert tokenizer.encode_chat("A") == A
    assert make_byte_level().encode("A") == A
    with pytest.raises(CheckpointError, match="EOS"):
        make_byte_level(eos_token_ids=(), add_eos=True)


def test_text_is_never_cut_or_padded(byte_level: Tokenizer) -> None:
    content = json.loads(byte_level.spec.json)
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    content["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    tokenizer = Tokenizer.from_spec(attrs.evolve(byte_level.spec, json=json.dumps(content)))
    assert tokenizer.encode("abcdef") == list(b"abcdef")


@pytest.mark.parametrize(
    "text", ["plain", " two  spaces\n\n", "żółć 日本 😀", "\x00\x7f", "<|im_start|>", "<café>"]
)
def test_decoding_gives_the_text_back(byte_level: Tokenizer, text: str) -> None:
    assert byte_level.decode(byte_level.encode(text)) == text


@pytest.mark.parametrize("text", ["Hello world", "  a", "日本é\n😀"])
def test_decoding_byte_fallback_gives_the_text_back(byte_fallback: Tokenizer, text: str) -> None:
    # This toy adds no space in front, so the one that decoding takes away is given along.
    assert byte_fallback.decode(byte_fallback.encode(" " + text)) == text


def test_token_bytes_are_the_real_bytes(byte_level: Tokenizer, byte_fallback: Tokenizer) -> None:
    assert [byte_level.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert byte_level.token_bytes(BOS) == b"<s>"
    assert byte_level.token_bytes(258) == "<café>".encode()
    assert byte_fallback.token_bytes(3 + 0xE2) == b"\xe2"
    hello = byte_fallback.token_to_id("▁Hello")
    assert hello is not None and byte_fallback.token_bytes(hello) == b" Hello"
    assert byte_level.token_bytes(10**6) == b"" == byte_level.token_bytes(-1)


def test_special_ids_are_known(byte_level: Tokenizer, make_byte_level: Make) -> None:
    assert byte_level.special_ids == {BOS, EOS}
    assert byte_level.is_special(BOS) and not byte_level.is_special(258)
    assert make_byte_level(pad_token_id=7).is_special(7)
    assert byte_level.decode([*A, EOS]) == "A"
    assert byte_level.decode([*A, EOS], skip_special_tokens=False) == "A</s>"


def test_ids_and_tokens_translate(byte_level: Tokenizer) -> None:
    assert byte_level.vocab_size == 259
    assert byte_level.token_to_id("</s>") == EOS and byte_level.id_to_token(EOS) == "</s>"
    assert byte_level.id_to_token(0x20) == "Ġ" and byte_level.token_to_id("nothing") is None
    assert byte_level.id_to_token(259) is None


@pytest.mark.parametrize("text", [None, 7, b"bytes", ["a"]])
def test_a_prompt_that_is_no_text_is_refused(byte_level: Tokenizer, text: Any) -> None:
    with pytest.raises(RequestError, match="prompt must be a string") as caught:
        byte_level.encode(text)
    assert caught.value.field == "prompt"


def test_half_a_surrogate_pair_is_refused(byte_level: Tokenizer) -> None:
    for encode in (byte_level.encode, lambda text: byte_level.encode_batch(["fine", text])):
        with pytest.raises(RequestError, match="not valid Unicode"):
            encode("a\ud800")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"added_tokens": 3}', '{"model": {"type": "X"}}']
)
def test_a_malformed_file_is_refused_with_its_name(content: str) -> None:
    with pytest.raises(CheckpointError, match=r"broken\.json: not a tokeniser"):
        Tokenizer.from_spec(TokenizerSpec(json=content, source="broken.json", vocab_size=1))


def test_an_added_token_that_would_move_to_another_id_is_refused(byte_level: Tokenizer) -> None:
    content = json.loads(byte_level.spec.json)
    content["added_tokens"][-1]["id"] = 300
    with pytest.raises(CheckpointError, match=r"'<café>' is stored with id 300, but gets id 258"):
        Tokenizer.from_spec(attrs.evolve(byte_level.spec, json=json.dumps(content)))


@pytest.mark.parametrize("field", ["bos_token_id", "pad_token_id", "eos_token_ids"])
def test_named_ids_outside_the_vocabulary_are_refused(make_byte_level: Make, field: str) -> None:
    value: Any = (1, 259) if field == "eos_token_ids" else 259
    with pytest.raises(CheckpointError, match=f"{field} 259 is outside the vocabulary of 259"):
        make_byte_level(**{field: value})
