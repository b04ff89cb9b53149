"""Log-probabilities carry the text of each token by itself."""

from __future__ import annotations

from pegboard.api.params import Logprob
from pegboard.api.step import TokenLogprobs
from pegboard.text.logprobs import LogprobDecoder
from pegboard.text.tokenizer import Tokenizer


def test_o09_alternatives_are_decoded_each_by_itself(byte_level: Tokenizer) -> None:
    # The bytes of “ one after the other as alternatives of one position: they must not become a
    # character.
    ids = list("“".encode())
    entry = LogprobDecoder(byte_level).entry(
        TokenLogprobs(ids=ids, logprobs=[-0.5, -1.0, -2.0], rank=1)
    )
    assert entry == {
        ids[0]: Logprob(-0.5, 1, "\ufffd"),
        ids[1]: Logprob(-1.0, 1, "\ufffd"),
        ids[2]: Logprob(-2.0, 2, "\ufffd"),
    }


def test_o09_the_bytes_of_a_texts_tokens_join_to_the_texts_bytes(byte_level: Tokenizer) -> None:
    ids = byte_level.encode("“ ” and 😀")
    assert b"".join(map(byte_level.token_bytes, ids)) == "“ ” and 😀".encode()


def test_o09_alternatives_with_equal_text_are_all_there(byte_fallback: Tokenizer) -> None:
    letter, byte = byte_fallback.token_to_id("a"), 3 + ord("a")
    assert letter is not None
    position = TokenLogprobs(ids=[letter, letter, byte], logprobs=[-0.1, -0.1, -3.0], rank=1)
    entry = LogprobDecoder(byte_fallback).entry(position)
    assert entry == {letter: Logprob(-0.1, 1, "a"), byte: Logprob(-3.0, 2, "a")}


def test_a_chosen_token_outside_the_likeliest_keeps_its_rank(byte_level: Tokenizer) -> None:
    position = TokenLogprobs(ids=[0x43, 0x41, 0x42], logprobs=[-9.0, -0.1, -2.0], rank=17)
    entry = LogprobDecoder(byte_level).entry(position)
    assert [(logprob.rank, logprob.decoded_token) for logprob in entry.values()] == [
        (17, "C"),
        (1, "A"),
        (2, "B"),
    ]


def test_a_special_token_shows_its_name(byte_level: Tokenizer) -> None:
    assert LogprobDecoder(byte_level).text(257) == "</s>"
