"""Text put together token by token is the text of all tokens at once."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.errors import UnsupportedError
from pegboard.text.detokenizer import IncrementalDetokenizer
from pegboard.text.tokenizer import Tokenizer


def pieces_of(
    tokenizer: Tokenizer, ids: list[int], prompt: tuple[int, ...] = (), /, **options: bool
) -> list[str]:
    stream = IncrementalDetokenizer(tokenizer, prompt, **options)
    return [*(stream.push([token_id]) for token_id in ids), stream.finish()]


def library(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(tokenizer.spec.json)


def test_o01_invalid_bytes_become_replacement_characters_and_text_goes_on(
    byte_level: Tokenizer,
) -> None:
    ids = [0xF0, 0x9F, 0x41, 0x80, *b" then text"]
    assert pieces_of(byte_level, ids)[:4] == ["", "", "\ufffdA", "\ufffd"]
    assert (
        "".join(pieces_of(byte_level, ids)) == "\ufffdA\ufffd then text" == byte_level.decode(ids)
    )


def test_o01_holds_for_byte_fallback_tokens_too(byte_fallback: Tokenizer) -> None:
    ids = [3 + byte for byte in (0xF0, 0x9F, 0x41, 0x80)] + [260 + 1]
    assert (
        "".join(pieces_of(byte_fallback, ids)) == "\ufffdA\ufffd Hello" == byte_fallback.decode(ids)
    )


def test_no_piece_holds_half_a_character(byte_level: Tokenizer) -> None:
    text = "aé日😀"
    assert pieces_of(byte_level, list(text.encode())) == [
        "a",
        "",
        "é",
        "",
        "",
        "日",
        "",
        "",
        "",
        "😀",
        "",
    ]


def test_an_unfinished_character_at_the_end_is_flushed(byte_level: Tokenizer) -> None:
    assert pieces_of(byte_level, [0x41, 0xE6, 0x97]) == ["A", "", "", "\ufffd"]


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 258), max_size=40), skip=st.booleans(), data=st.data())
def test_byte_level_pieces_join_to_the_librarys_decoding(
    byte_level: Tokenizer, ids: list[int], skip: bool, data: st.DataObject
) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=5).map(sorted))
    stream = IncrementalDetokenizer(byte_level, skip_special_tokens=skip)
    bounds = list(zip([0, *cuts], [*cuts, len(ids)], strict=True))
    text = "".join(stream.push(ids[start:stop]) for start, stop in bounds) + stream.finish()
    # An added token is written out: the library reads "<café>" in the byte alphabet and finds no
    # text there.
    expected = library(byte_level).decode([i for i in ids if i != 258], skip_special_tokens=skip)
    assert text == byte_level.decode(ids, skip_special_tokens=skip)
    assert text == expected or 258 in ids


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, 269), max_size=30), skip=st.booleans())
def test_byte_fallback_pieces_join_to_the_one_shot_decoding(
    byte_fallback: Tokenizer, ids: list[int], skip: bool
) -> None:
    text = "".join(pieces_of(byte_fallback, ids, skip_special_tokens=skip))
    assert text == byte_fallback.decode(ids, skip_special_tokens=skip)
    if "\ufffd" not in text:
        assert text == library(byte_fallback).decode(ids, skip_special_tokens=skip)


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(st.integers(259, 269), min_size=1, max_size=4),
    ids=st.lists(st.integers(259, 269), max_size=8),
)
def test_text_after_a_prompt_is_what_the_prompts_text_grows_by(
    byte_fallback: Tokenizer, prompt: list[int], ids: list[int]
) -> None:
    grown = "".join(pieces_of(byte_fallback, ids, tuple(prompt)))
    assert byte_fallback.decode(prompt) + grown == byte_fallback.decode(prompt + ids)


def test_a_prompt_of_special_tokens_alone_leaves_the_start_of_the_text(
    byte_fallback: Tokenizer,
) -> None:
    hello = byte_fallback.token_to_id("▁Hello")
    assert hello is not None
    assert "".join(pieces_of(byte_fallback, [hello], (1,))) == "Hello"
    assert "".join(pieces_of(byte_fallback, [hello], (1, hello))) == " Hello"


DECODERS = {
    "words": None,
    "metaspace": {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    },
    "metaspace never": {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "never",
        "split": True,
    },
    "word pieces": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "word pieces as they are": {"type": "WordPiece", "prefix": "##", "cleanup": False},
    "gemma": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    },
}
ODD_WORDS = ("a", "▁b", "▁▁c", "##d", ".", "do", "not", "n't", "'s", "'", "▁", "é")


@pytest.mark.parametrize("name", DECODERS)
@settings(max_examples=60, deadline=None)
@given(ids=st.lists(st.integers(0, len(ODD_WORDS) + 1), max_size=8), skip=st.booleans())
def test_every_supported_decoder_reads_as_the_library_does(
    make_from_parts: Callable[..., Tokenizer], name: str, ids: list[int], skip: bool
) -> None:
    tokenizer = make_from_parts(ODD_WORDS, DECODERS[name])
    expected = library(tokenizer).decode(ids, skip_special_tokens=skip)
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
    assert "".join(pieces_of(tokenizer, ids, skip_special_tokens=skip)) == expected


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
)
def test_a_decoder_that_cannot_stream_is_refused_by_name(
    make_from_parts: Callable[..., Tokenizer], decoder: dict[str, object]
) -> None:
    last = decoder["decoders"][-1] if "decoders" in decoder else decoder  # type: ignore[index]
    with pytest.raises(UnsupportedError, match=f"toy.json: decoder .*{last['type']}"):
        make_from_parts(ODD_WORDS, decoder)


def test_special_tokens_can_be_joined_without_spaces(
    make_from_parts: Callable[..., Tokenizer],
) -> None:
    tokenizer = make_from_parts(("a",), None)
    ids = [0, 1, 2, 0]
    spaced = pieces_of(tokenizer, ids, skip_special_tokens=False)
    assert "".join(spaced) == "a <s> </s> a"
    options = {"skip_special_tokens": False, "spaces_between_special_tokens": False}
    joined = pieces_of(tokenizer, ids, (), **options)
    assert "".join(joined) == "a <s></s> a"


def test_ids_that_are_no_tokens_give_no_text(byte_level: Tokenizer) -> None:
    assert "".join(pieces_of(byte_level, [0x41, 259, 10**12, -1, 0x42])) == "AB"


def test_the_work_per_token_does_not_grow_with_the_text(byte_level: Tokenizer) -> None:
    ids = list("wörd😀 ".encode()) * 4000

    def seconds(count: int) -> float:
        stream = IncrementalDetokenizer(byte_level)
        start = time.perf_counter()
        for token_id in ids[:count]:
            stream.push((token_id,))
        return time.perf_counter() - start

    seconds(1000)
    small, large = (min(seconds(count) for _ in range(3)) for count in (4000, 40000))
    # Ten times the tokens; were it quadratic, it would be a hundred times the work.
    assert large < 40 * small
