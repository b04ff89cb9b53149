"""One sequence's tokens become text that users may see."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pegboard.api.params import SamplingParams
from pegboard.text.detokenizer import IncrementalDetokenizer
from pegboard.text.output import TextDelta, TextStream
from pegboard.text.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]


def stream_tokens(
    make: Make, tokens: list[str], *, push: int = 1, **params: object
) -> tuple[list[TextDelta], list[int], Tokenizer]:
    """Deltas for an output made of `tokens` (texts), `push` of them at a time; the ids; the
    tokeniser."""
    tokenizer = make(extra=tuple(dict.fromkeys(tokens)))
    id_of = {tokenizer.token_bytes(token_id): token_id for token_id in range(tokenizer.vocab_size)}
    ids = [id_of[text.encode()] for text in tokens]
    stream = TextStream(tokenizer, SamplingParams(max_tokens=None, **params))  # type: ignore[arg-type]
    deltas = [stream.push(ids[start : start + push]) for start in range(0, len(ids), push)]
    return [*deltas, stream.finish()], ids, tokenizer


def shown(deltas: list[TextDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def stop_of(deltas: list[TextDelta]) -> str | None:
    return next((delta.stopped for delta in deltas if delta.stopped), None)


ALPHABET = ["AB", "CD", "EF", "GHI", "JKL"]


def test_o02_a_stop_that_no_token_boundary_meets_is_found(make_byte_level: Make) -> None:
    deltas, _, _ = stream_tokens(make_byte_level, ALPHABET, stop="DEFGHIJ")
    assert shown(deltas) == "ABC" and stop_of(deltas) == "DEFGHIJ"
    assert not any(set(delta.text) & set("DEFGHIJ") for delta in deltas)


@pytest.mark.parametrize("push", [1, 2, 5])
def test_o02_the_tokens_up_to_the_stop_are_the_output_however_many_come_at_once(
    make_byte_level: Make, push: int
) -> None:
    deltas, _, _ = stream_tokens(make_byte_level, [*ALPHABET, "AB"], push=push, stop="FG")
    assert shown(deltas) == "ABCDE"
    assert (
        sum(delta.consumed for delta in deltas) == 4 == sum(delta.token_count for delta in deltas)
    )


def test_o02_a_stop_that_only_begins_is_shown_in_the_end(make_byte_level: Make) -> None:
    deltas, _, _ = stream_tokens(make_byte_level, ["in ", "Par", "is"], stop="Pari")
    assert shown(deltas) == "in " and stop_of(deltas) == "Pari"
    deltas, _, _ = stream_tokens(make_byte_level, ["in ", "Par"], stop="Pari")
    assert [delta.text for delta in deltas] == ["in ", "", "Par"] and stop_of(deltas) is None


def test_o02_the_held_back_beginning_of_another_stop_is_released(make_byte_level: Make) -> None:
    deltas, _, _ = stream_tokens(make_byte_level, ["a", "b"], stop=["ac", "b"])
    assert shown(deltas) == "a" and stop_of(deltas) == "b"


def test_o02_an_included_stop_ends_the_text(make_byte_level: Make) -> None:
    deltas, _, _ = stream_tokens(
        make_byte_level, ALPHABET, stop="DEFGHIJ", include_stop_str_in_output=True
    )
    assert shown(deltas) == "ABCDEFGHIJ"


def test_nothing_comes_after_a_stop(make_byte_level: Make) -> None:
    deltas, _, _ = stream_tokens(make_byte_level, ["a", "b", "c"], stop="b")
    assert deltas[2:] == [TextDelta("", 0, 0), TextDelta("", 0, 0)]


def test_o03_ids_are_held_back_with_their_text(make_byte_level: Make) -> None:
    deltas, _, _ = stream_tokens(make_byte_level, ["x", "@@", "@@", "y", "@"], stop="@@@@@@")
    assert [(delta.text, delta.token_count) for delta in deltas] == [
        ("x", 1), ("", 0), ("", 0), ("@@@@y", 3), ("", 0), ("@", 1),
    ]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.sampled_from([*b"aab", 0xC3, 0xA9, 256, 257]), max_size=25),
    stop=st.lists(st.text("abé", min_size=1, max_size=4), min_size=1, max_size=2),
)
def test_o03_each_deltas_ids_decode_to_its_text(
    byte_level: Tokenizer, ids: list[int], stop: list[str]
) -> None:
    stream = TextStream(byte_level, SamplingParams(stop=stop))
    reader = IncrementalDetokenizer(
        byte_level
    )  # keeps the bytes of a character that is not complete
    start = 0
    for delta in map(stream.push, ([token_id] for token_id in ids)):
        released = ids[start : start + delta.token_count]
        start += delta.token_count
        if delta.stopped:
            return
        assert reader.push(released) == delta.text
    rest = stream.finish()
    if not rest.stopped:
        assert start + rest.token_count == len(ids)
        assert reader.push(ids[start:]) + reader.finish() == rest.text


def test_o07_no_stops_are_no_stop(make_byte_level: Make) -> None:
    for stop in (list[str](), None):
        deltas, ids, tokenizer = stream_tokens(make_byte_level, ALPHABET, stop=stop)
        assert shown(deltas) == tokenizer.decode(ids)


def test_o08_a_stop_string_is_ignored_in_the_first_min_tokens(make_byte_level: Make) -> None:
    tokens = ["a", "\n", "b", "\n", "c", "\n", "d"]
    deltas, _, _ = stream_tokens(make_byte_level, tokens, stop=["\n"], min_tokens=5)
    assert shown(deltas) == "a\nb\nc" and stop_of(deltas) == "\n"
    assert sum(delta.consumed for delta in deltas) == 6


def test_o08_the_token_after_min_tokens_may_complete_a_stop(make_byte_level: Make) -> None:
    for min_tokens, text in ((0, ""), (1, ""), (2, "xyxyx"), (5, "xyxyx")):
        tokens = ["x", "y", "xy", "x", "z"]
        stop = "xy" if min_tokens < 2 else "z"
        deltas, _, _ = stream_tokens(make_byte_level, tokens, stop=stop, min_tokens=min_tokens)
        assert shown(deltas) == (text if min_tokens < 5 else "xyxyxz")


def test_a_stop_may_be_completed_by_what_the_end_flushes(byte_level: Tokenizer) -> None:
    stream = TextStream(byte_level, SamplingParams(stop="\ufffd"))
    assert stream.push([0x41, 0xE6]) == TextDelta("A", 2, 2)
    assert stream.finish() == TextDelta("", 0, 0, "\ufffd")


def test_special_tokens_are_shown_on_request(byte_level: Tokenizer) -> None:
    for skip, text in ((True, "A"), (False, "A</s>")):
        stream = TextStream(byte_level, SamplingParams(skip_special_tokens=skip))
        assert stream.push([0x41, 257]).text == text
