"""What users give is checked before it reaches the engine."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from pegboard.api.params import SamplingParams
from pegboard.engine.inputs import InputProcessor
from pegboard.engine.trim import allocator_trim, give_back
from pegboard.errors import RequestError

VOCABULARY = 512


class Letters:
    """Encodes a character as its code; no special tokens."""

    vocab_size = 10
    longest_token = 4

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(letter) for letter in text]


def processor(**changes: Any) -> InputProcessor:
    settings: dict[str, Any] = {
        "encoder": Letters(),
        "vocab_size": VOCABULARY,
        "max_model_len": 64,
        "eos_token_ids": (2, 7),
        "seeds": random.Random(0),
    }
    return InputProcessor(**{**settings, **changes})


@pytest.mark.parametrize(
    "prompt",
    [
        "abc",
        [97, 98, 99],
        (97, 98, 99),
        np.array([97, 98, 99]),
        [97, np.int32(98), np.uint8(99)],
        [torch.tensor(97), torch.tensor(98, dtype=torch.int32), np.array(99)],
        torch.tensor([97, 98, 99]),
        {"prompt": "abc"},
        {"prompt_token_ids": [97, 98, 99]},
        {"prompt_token_ids": np.array([97, 98, 99]), "prompt": None},
    ],
)
def test_every_form_of_prompt_gives_the_same_ids(prompt: Any) -> None:
    found = processor().tokenise(prompt).ids
    assert found == [97, 98, 99]
    assert all(type(token) is int for token in found)


def test_salt_is_kept() -> None:
    prompt = processor().tokenise({"prompt": "abc", "cache_salt": "tenant"})
    (request,) = processor().requests("r", prompt, SamplingParams())
    assert request.cache_salt == "tenant"


@pytest.mark.parametrize("salt", ["", 5, b"x", "\ud800"])
def test_a_salt_that_cannot_be_hashed_is_refused(salt: Any) -> None:
    with pytest.raises(RequestError, match="cache_salt=") as caught:
        processor().tokenise({"prompt": "abc", "cache_salt": salt})
    assert caught.value.field == "cache_salt"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "empty"),
        ([], "empty"),
        ([VOCABULARY], "outside 0 to 511"),
        ([-1], "outside 0 to 511"),
        (["a"], "not an integer"),
        ([True], "not an integer"),
        ([1.5], "not an integer"),
        ([np.float32(1)], "not an integer"),
        ([np.bool_(True)], "not an integer"),
        (b"abc", "bytes is neither"),
        ({97, 98}, "set is neither"),
        ({"prompt_token_ids": b"abc"}, "prompt_token_ids is a bytes"),
        ({"prompt": "abc", "prompt_token_ids": [97]}, "both 'prompt' and 'prompt_token_ids'"),
        (7, "int is neither"),
        (None, "NoneType"),
        ({}, "needs 'prompt'"),
        ({"prompt": 3}, "needs 'prompt'"),
        ({"prompt_token_ids": "abc"}, "not a list"),
        ({"prompt": "a", "multi_modal_data": {}}, "multi_modal_data"),
    ],
)
def test_o11_an_invalid_prompt_is_refused_with_the_reason(prompt: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        processor().tokenise(prompt)
    assert caught.value.field == "prompt"


def test_text_without_a_tokeniser_is_refused() -> None:
    with pytest.raises(RequestError, match="no tokeniser"):
        processor(encoder=None).tokenise("abc")


@pytest.mark.parametrize(
    ("prompt", "tokens", "room"), [(8, 56, 56), (63, 1, 1), (63, None, 1), (8, None, 56)]
)
def test_o12_what_fits_the_context_is_accepted(prompt: int, tokens: int | None, room: int) -> None:
    inputs = processor()
    (request,) = inputs.requests(
        "r", inputs.tokenise([5] * prompt), SamplingParams(max_tokens=tokens)
    )
    assert request.max_tokens == room


@pytest.mark.parametrize(
    ("prompt", "tokens", "asked"),
    [(8, 61, "max_tokens=61"), (64, 1, "max_tokens=1"), (64, None, "at least one output token")],
)
def test_o12_an_overlong_request_names_limit_prompt_and_wish(
    prompt: int, tokens: int | None, asked: str
) -> None:
    inputs = processor()
    with pytest.raises(RequestError, match="holds 64 tokens") as caught:
        inputs.requests("r", inputs.tokenise([5] * prompt), SamplingParams(max_tokens=tokens))
    assert f"prompt has {prompt}" in str(caught.value) and asked in str(caught.value)


def test_o12_a_prompt_longer_than_the_context_is_refused() -> None:
    with pytest.raises(RequestError, match="65 tokens, but the context holds 64"):
        processor().tokenise([5] * 65)


def test_o10_scoring_a_prompt_that_fills_the_context_needs_no_room() -> None:
    inputs = processor()
    params = SamplingParams(max_tokens=0, prompt_logprobs=1)
    (request,) = inputs.requests("r", inputs.tokenise([5] * 64), params)
    assert request.max_tokens == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {VOCABULARY: 1.0}),
        ("stop_token_ids", [VOCABULARY]),
        ("allowed_token_ids", [3, VOCABULARY]),
    ],
)
def test_o06_ids_past_the_vocabulary_are_refused(field: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{field} names token 512") as caught:
        processor().check_params(SamplingParams(**{field: value}))
    assert caught.value.field == field


def test_end_ids_are_the_models_and_the_requests() -> None:
    inputs = processor()
    prompt = inputs.tokenise("abc")
    (request,) = inputs.requests("r", prompt, SamplingParams(stop_token_ids=[9, 7]))
    assert request.end_ids == [2, 7, 9]
    (request,) = inputs.requests("r", prompt, SamplingParams(stop_token_ids=[9], ignore_eos=True))
    assert request.end_ids == [9]


def test_children_share_seed_and_prompt_and_differ_in_index() -> None:
    inputs = processor()
    params = SamplingParams(n=3, prompt_logprobs=1)
    first, *children = inputs.requests("r", inputs.tokenise("abc"), params)
    assert [child.child for child in children] == [1, 2]
    assert all(child.parent == first.request_id for child in children)
    assert all(child.seed == first.seed for child in children)
    assert [child.params.prompt_logprobs for child in children] == [None, None]


def test_seeds_are_drawn_in_order_and_repeat_with_the_engines_seed() -> None:
    def seeds() -> list[int]:
        inputs = processor(seeds=random.Random(5))
        prompt = inputs.tokenise("abc")
        return [inputs.requests("r", prompt, SamplingParams())[0].seed for _ in range(3)]

    assert seeds() == seeds()
    assert len(set(seeds())) == 3


def test_a_given_seed_is_used() -> None:
    inputs = processor()
    (request,) = inputs.requests("r", inputs.tokenise("abc"), SamplingParams(seed=-4))
    assert request.seed == -4


@pytest.mark.parametrize("place", [0, 40, 63])
@pytest.mark.parametrize("bad", [-1, VOCABULARY, True, 2.5, "a"])
def test_one_bad_token_among_many_is_found_by_place(place: int, bad: Any) -> None:
    ids: list[Any] = [5] * 64
    ids[place] = bad
    with pytest.raises(RequestError, match=f"token {place} is {bad!r}"):
        processor().tokenise(ids)


@pytest.mark.parametrize(
    "prompt",
    [
        torch.tensor(5),
        np.array(5),
        [torch.tensor(5), torch.tensor(6.0)],
        [torch.tensor(True)],
        [np.array(True)],
    ],
    ids=repr,
)
def test_scalars_and_what_is_no_integer_are_no_prompts(prompt: Any) -> None:
    with pytest.raises(RequestError, match="the prompt is not valid") as caught:
        processor().tokenise(prompt)
    assert caught.value.field == "prompt"


def test_more_least_tokens_than_there_is_room_for_are_refused() -> None:
    made = processor()
    prompt = made.tokenise([1] * 60)
    params = SamplingParams(max_tokens=None, min_tokens=5)
    with pytest.raises(RequestError, match="min_tokens=5 is not allowed: at most 4") as caught:
        made.requests("r", prompt, params)
    assert caught.value.field == "min_tokens"
    fits = SamplingParams(max_tokens=None, min_tokens=4)
    assert made.requests("r", prompt, fits)[0].max_tokens == 4


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded() -> None:
    class Once(Letters):
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            raise AssertionError("it was encoded")

    with pytest.raises(RequestError, match=r"257 characters.*64 tokens.*4 characters") as one:
        processor(encoder=Once()).tokenise("a" * 257)
    assert one.value.field == "prompt"
    with pytest.raises(AssertionError, match="encoded"):
        processor(encoder=Once()).tokenise("a" * 256)


def test_memory_is_given_back_after_long_texts_only() -> None:
    calls: list[str] = []
    for tokens in (0, 19_999, 20_000):
        give_back(tokens, lambda: calls.append("trim"))
    assert calls == ["trim"]
    trim = allocator_trim()
    assert trim is None or trim() in (0, 1)
