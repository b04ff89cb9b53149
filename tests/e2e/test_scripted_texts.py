"""Texts, stops and ends of whole requests: a scripted model says exactly what each case needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pegboard import LLM, RequestOutput, SamplingParams
from pegboard.errors import RequestError
from pegboard.testing.checkpoints import ByteVocabulary

pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = [70, 71, 72]
Speak = Callable[..., LLM]


@pytest.fixture
def speak(scripted_folder: Any) -> Iterator[Speak]:
    """Opens a model that answers `PROMPT` with the given pieces, a token each, and then ends."""
    opened: list[LLM] = []

    def make(pieces: Sequence[bytes], **settings: Any) -> LLM:
        longer = tuple(dict.fromkeys(piece for piece in pieces if len(piece) > 1))
        vocabulary = ByteVocabulary(longer)
        script = [
            vocabulary.piece_id(piece) if len(piece) > 1 else vocabulary.byte_id(piece[0])
            for piece in pieces
        ]
        folder = scripted_folder(script, len(PROMPT), vocabulary=vocabulary, **settings)
        options = {"max_model_len": 128, "max_num_seqs": 8, "num_gpu_blocks_override": 64}
        opened.append(LLM(str(folder), dtype="float32", **options))
        return opened[-1]

    yield make
    for llm in opened:
        llm.close()


def single(data: bytes) -> list[bytes]:
    return [data[place : place + 1] for place in range(len(data))]


def answer(llm: LLM, **params: Any) -> RequestOutput:
    settings = {"temperature": 0.0, "max_tokens": 60, **params}
    (output,) = llm.generate(PROMPT, SamplingParams(**settings), use_tqdm=False)
    return output


def states(llm: LLM, **params: Any) -> list[str]:
    """The text after every step of a streamed answer."""
    settings = SamplingParams(**{"temperature": 0.0, "max_tokens": 60, **params})
    return [output.outputs[0].text for output in llm.stream(PROMPT, settings)]


BROKEN = b"ok \xf0\x9fA\x80 then \xe2\x82\xac and \xf0\x9f\x98\x80 end"
REPAIRED = "ok \ufffdA\ufffd then € and 😀 end"


def test_o01_bytes_that_are_no_text_become_replacement_characters(speak: Speak) -> None:
    llm = speak(single(BROKEN))
    made = answer(llm).outputs[0]
    assert made.text == REPAIRED
    assert made.token_ids[-1] == 1 and made.finish_reason == "stop"
    assert llm.get_tokenizer().decode(made.token_ids[:-1]) == REPAIRED


def test_o01_a_streamed_answer_never_shows_half_a_character(speak: Speak) -> None:
    seen = states(speak(single(BROKEN)))
    assert seen[-1] == REPAIRED
    assert all(REPAIRED.startswith(text) for text in seen)
    assert len(set(seen)) > 20, "it came in pieces"


def test_o01_requests_beside_a_broken_one_are_untouched(speak: Speak) -> None:
    llm = speak(single(BROKEN))
    # The script goes by position: a longer prompt begins later in it.
    prompts = [[9] * (len(PROMPT) + 7), PROMPT, [9] * (len(PROMPT) + 16)]
    params = SamplingParams(temperature=0.0, max_tokens=60)
    outputs = llm.generate(prompts, params, use_tqdm=False)
    texts = [output.outputs[0].text for output in outputs]
    assert texts == [" then € and 😀 end", REPAIRED, " and 😀 end"]
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop"] * 3


LETTERS = (b"AB", b"CD", b"EF", b"GHI", b"JKL")


@pytest.mark.parametrize(
    ("pieces", "stop", "text", "reason"),
    [
        (LETTERS, "DEFGHIJ", "ABC", "DEFGHIJ"),
        ((b"I love ", b"Par", b"is", b"!"), "Pari", "I love ", "Pari"),
        (single(b"aaab!"), "aab", "a", "aab"),
        ((b"aa", b"ab", b"!"), "aab", "a", "aab"),
        ((b"a", b"b", b"c"), ["ac", "b"], "a", "b"),
        ((b"xab", b"c"), ["ab", "b"], "x", "ab"),
        ((b"\xe2\x82", b"\xac stop"), "€", "", "€"),
        (LETTERS, ["ABCDEFGHIJKLM", "H"], "ABCDEFG", "H"),
    ],
)
def test_o02_no_character_of_a_stop_is_shown_however_the_tokens_cut_it(
    speak: Speak, pieces: Sequence[bytes], stop: Any, text: str, reason: str
) -> None:
    llm = speak(pieces)
    made = answer(llm, stop=stop).outputs[0]
    assert (made.text, made.finish_reason, made.stop_reason) == (text, "stop", reason)
    seen = states(llm, stop=stop)
    assert seen[-1] == text
    assert all(text.startswith(part) for part in seen), seen


@pytest.mark.parametrize(
    ("pieces", "stop", "text"),
    [
        (LETTERS, "DEFGHIJ", "ABCDEFGHIJ"),
        ((b"I love ", b"Par", b"is", b"!"), ["Pari"], "I love Pari"),
        (single(b"aaab!"), "aab", "aaab"),
    ],
)
def test_o02_a_stop_that_is_to_be_shown_ends_the_text(
    speak: Speak, pieces: Sequence[bytes], stop: Any, text: str
) -> None:
    llm = speak(pieces)
    shown = {"stop": stop, "include_stop_str_in_output": True}
    assert answer(llm, **shown).outputs[0].text == text
    assert states(llm, **shown)[-1] == text


@pytest.mark.parametrize(("tokens", "reason"), [(2, "length"), (60, "stop")])
def test_o02_a_beginning_of_a_stop_that_was_held_back_is_shown_at_the_end(
    speak: Speak, tokens: int, reason: str
) -> None:
    llm = speak((b"I love ", b"Par"))
    made = answer(llm, stop="Paris", max_tokens=tokens).outputs[0]
    assert (made.text, made.finish_reason, made.stop_reason) == ("I love Par", reason, None)
    assert states(llm, stop="Paris", max_tokens=tokens)[-1] == "I love Par"


def test_o02_the_ids_end_with_the_token_that_completed_the_stop(speak: Speak) -> None:
    llm = speak(LETTERS)
    made = answer(llm, stop="DE", logprobs=0).outputs[0]
    assert llm.get_tokenizer().decode(made.token_ids) == "ABCDEF"
    assert made.logprobs is not None and len(made.logprobs) == len(made.token_ids) == 3


def test_o08_a_stop_string_counts_only_after_min_tokens(speak: Speak) -> None:
    llm = speak(single(b"a\nbcdef\nrest"))
    assert answer(llm, stop=["\n"]).outputs[0].text == "a"
    assert answer(llm, stop=["\n"], min_tokens=5).outputs[0].text == "a\nbcdef"
    assert answer(llm, stop=["\n"], min_tokens=8).outputs[0].text == "a\nbcdef\nrest"


@pytest.mark.parametrize("least", range(5))
@pytest.mark.parametrize("forced", [1, 7])
def test_o08_a_forced_end_comes_right_after_min_tokens(
    speak: Speak, least: int, forced: int
) -> None:
    llm = speak(single(b"abcdefgh"), eos_token_ids=[1, 7])
    made = answer(llm, min_tokens=least, logit_bias={forced: 100.0}).outputs[0]
    assert llm.get_tokenizer().decode(made.token_ids[:-1]) == "abcdefgh"[:least]
    assert made.token_ids[-1] == forced
    assert not {1, 7} & set(made.token_ids[:-1])
    assert made.finish_reason == "stop"


def test_o08_no_end_id_is_said_before_min_tokens_whichever_is_likeliest(speak: Speak) -> None:
    llm = speak(single(b"ab"), eos_token_ids=[1, 7])
    made = answer(llm, min_tokens=6, logit_bias={7: 100.0, 1: 50.0}).outputs[0]
    assert len(made.token_ids) == 7 and made.token_ids[-1] == 7
    assert not {1, 7} & set(made.token_ids[:-1])


def test_o08_more_min_tokens_than_max_tokens_are_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_end_ids_are_ignored_where_asked(speak: Speak) -> None:
    llm = speak(single(b"ab"))
    made = answer(llm, max_tokens=5, ignore_eos=True).outputs[0]
    assert (made.text, made.finish_reason) == ("ab", "length")
    assert made.token_ids[2:] == [1, 1, 1]


def test_a_stop_token_id_ends_the_answer_and_is_named(speak: Speak) -> None:
    llm = speak(LETTERS)
    third = answer(llm).outputs[0].token_ids[2]
    made = answer(llm, stop_token_ids=[third]).outputs[0]
    assert (made.text, made.finish_reason, made.stop_reason) == ("ABCD", "stop", third)


def test_o10_a_prompt_can_be_scored_without_an_answer(speak: Speak) -> None:
    llm = speak(LETTERS)
    output = answer(llm, max_tokens=0, prompt_logprobs=1)
    made = output.outputs[0]
    assert (made.text, made.token_ids, made.finish_reason) == ("", [], "length")
    assert output.prompt_logprobs is not None
    assert [entry is None for entry in output.prompt_logprobs] == [True, False, False]
    for token, entry in zip(PROMPT[1:], output.prompt_logprobs[1:], strict=True):
        assert entry is not None and token in entry


@pytest.mark.parametrize("tokens", [0, -1])
def test_o10_an_answer_of_no_tokens_is_refused_and_the_engine_lives(
    speak: Speak, tokens: int
) -> None:
    llm = speak(LETTERS)
    with pytest.raises(RequestError, match="max_tokens"):
        answer(llm, max_tokens=tokens)
    assert answer(llm).outputs[0].text == "ABCDEFGHIJKL"


@pytest.mark.parametrize("tokens", [0, -1])
def test_o10_a_chat_answer_of_no_tokens_is_refused_and_the_engine_lives(
    speak: Speak, tokens: int
) -> None:
    llm = speak(LETTERS)
    talk = [{"role": "user", "content": "hi"}]
    template = {"chat_template": "{{ messages[0].content }}"}
    with pytest.raises(RequestError, match="max_tokens"):
        llm.chat(talk, SamplingParams(max_tokens=tokens), use_tqdm=False, **template)
    (output,) = llm.chat(talk, SamplingParams(max_tokens=1), use_tqdm=False, **template)
    assert len(output.outputs[0].token_ids) == 1
