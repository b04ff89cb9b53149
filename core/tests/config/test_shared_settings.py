"""Settings of surfaces: unknown and missing keys, bad values, bad JSON."""

from __future__ import annotations

import attrs
import pytest

from pegboard.api.settings import check_keys, parse_json, refused, setting_names
from pegboard.errors import ConfigError


@attrs.frozen
class Pantry:
    shelves: int = 1
    cold: bool = False


def test_known_keys_pass_and_their_names_come_from_the_class() -> None:
    assert setting_names(Pantry) == ["shelves", "cold"]
    check_keys("pantry", {"cold": True}, setting_names(Pantry), required=["cold"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"shelfes": 1}, r"^pantry: key 'shelfes' is not one of shelves, cold \(did you mean 'sh"),
        ({"zzz": 1}, r"^pantry: unknown key 'zzz'; there are shelves, cold$"),
        ({3: 1}, r"^pantry: unknown key 3; there are shelves, cold$"),
        ({"shelves": 1}, r"^pantry: the key 'cold' is missing$"),
    ],
)
def test_other_keys_are_refused_by_name(given: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_keys("pantry", given, setting_names(Pantry), required=["cold"])


def test_a_bad_value_is_named_with_what_is_allowed() -> None:
    assert str(refused("pantry", "shelves", -1, "at least 1")) == (
        "pantry: shelves=-1 is not allowed: at least 1"
    )


def test_text_is_read_as_json() -> None:
    assert parse_json("pantry", '{"cold": true}', "an object") == {"cold": True}


@pytest.mark.parametrize("text", ["{", "[" * 100_000, ""])
def test_text_that_is_no_json_is_refused_in_a_short_message(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^pantry='.*' is not allowed: an object \(") as caught:
        parse_json("pantry", text, "an object")
    assert len(str(caught.value)) < 300
