from __future__ import annotations

from typing import Any

import pytest

from pegboard.api.params import SamplingParams
from pegboard.config.generation import sampling_defaults, token_ids, united_ids
from pegboard.errors import CheckpointError


def test_known_keys_become_sampling_parameters() -> None:
    values = sampling_defaults(
        {
            "temperature": 0.6,
            "top_k": 20,
            "top_p": 0.95,
            "min_p": 0,
            "repetition_penalty": 1.05,
            "max_new_tokens": 100,
            "do_sample": True,
            "eos_token_id": [1, 2],
            "transformers_version": "9",
        }
    )
    assert values == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
        "max_tokens": 100,
    }
    assert SamplingParams(**values).max_tokens == 100


def test_nulls_and_nothing_leave_the_defaults() -> None:
    assert sampling_defaults({}) == {}
    assert sampling_defaults({"temperature": None, "top_k": None}) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", "hot"),
        ("temperature", True),
        ("temperature", -1.0),
        ("top_k", 1.5),
        ("top_k", "5"),
        ("top_p", 0),
        ("top_p", [1]),
        ("max_new_tokens", -5),
    ],
)
def test_a_bad_value_is_refused_with_file_and_key(key: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        sampling_defaults({key: value}, "folder/generation_config.json")
    assert "folder/generation_config.json" in str(caught.value)
    assert key.replace("max_new_tokens", "max_") in str(caught.value)


def test_token_ids_come_single_listed_or_not_at_all() -> None:
    assert token_ids(None, "x") == ()
    assert token_ids(5, "x") == (5,)
    assert token_ids([5, 6], "x") == (5, 6)
    for bad in ("5", 5.0, True, [1, "2"], {"a": 1}):
        with pytest.raises(CheckpointError, match="key of a file"):
            token_ids(bad, "key of a file")


def test_end_ids_are_united_and_those_outside_the_vocabulary_dropped() -> None:
    assert united_ids(10, (3, 1), (3, 9), (10, -1)) == (1, 3, 9)
