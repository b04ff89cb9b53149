"""Reading raw configurations key by key."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard.errors import ConfigError, UnsupportedError
from pegboard.nn import ConfigReader


def reader(**raw: Any) -> ConfigReader:
    return ConfigReader(raw, "file")


def test_values_are_read_with_their_types() -> None:
    read = reader(n=3, f=4.0, x=0.5, yes=True, word="silu", ids=[1, 2], none=None)
    assert (read.integer("n"), read.integer("f"), read.number("x")) == (3, 4, 0.5)
    assert read.flag("yes") is True
    assert read.text("word", allowed=("silu",)) == "silu"
    assert read.ids("ids") == (1, 2)
    assert read.integer("none", 7) == 7
    assert read.has("none")
    assert not read.has("absent")


@pytest.mark.parametrize(
    ("method", "value"),
    [
        ("integer", True),
        ("integer", 1.5),
        ("integer", "3"),
        ("integer", -1),
        ("number", float("inf")),
        ("number", 0),
        ("number", True),
        ("flag", 1),
        ("text", 5),
        ("ids", "2"),
        ("ids", [1, True]),
    ],
)
def test_a_wrong_type_names_key_and_value(method: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="file: key="):
        getattr(reader(key=value), method)("key")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match="file: key is missing"):
        reader().integer("key")
    with pytest.raises(ConfigError, match="file: key is missing"):
        reader(key=None).text("key")


def test_a_refused_key_passes_with_a_neutral_value_only() -> None:
    neutral = {"scale": (1,), "gate": (False,)}
    reader(scale=1.0, gate=False).refuse_unless(neutral)
    reader(scale=None).refuse_unless(neutral)
    with pytest.raises(UnsupportedError, match=r"scale=0\.5"):
        reader(scale=0.5).refuse_unless(neutral)
    with pytest.raises(UnsupportedError, match="scale=True"):
        reader(scale=True).refuse_unless(neutral)


def test_finish_names_what_nobody_looked_at() -> None:
    read = reader(n=1, harmless=2, _private=3, odd=4)
    read.integer("n")
    assert read.finish({"harmless"}, ("_",)) == ("odd",)


def test_a_number_written_once_per_layer_must_be_the_same_for_all() -> None:
    read = ConfigReader({"same": [3, 3], "differs": [3, 4], "bad": ["3"]}, "file")
    assert read.uniform("same") == 3
    assert read.uniform("absent", 5) == 5
    for key in ("differs", "bad", "absent"):
        with pytest.raises(ConfigError, match=key):
            read.uniform(key)


def test_the_dtype_has_two_names_and_two_spellings() -> None:
    forms = [{"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}, {"dtype": "torch.bfloat16"}]
    assert {ConfigReader(form, "file").dtype() for form in forms} == {"bfloat16"}
    assert ConfigReader({}, "file").dtype() == "float32"
    with pytest.raises(ConfigError, match="dtype='int3'"):
        ConfigReader({"torch_dtype": "int3"}, "file").dtype()


def test_kinds_of_layers_are_read_where_they_are_listed() -> None:
    assert reader().layer_types(2) is None
    kinds = ["full_attention", "sliding_attention"]
    assert reader(layer_types=kinds).layer_types(2) == kinds


@pytest.mark.parametrize("kinds", [["full_attention"], ["full_attention", "odd"], [{}, []], 7])
def test_other_kinds_of_layers_are_refused(kinds: object) -> None:
    with pytest.raises(ConfigError, match=r"layer_types=.*a list of 2 times full_attention or"):
        reader(layer_types=kinds).layer_types(2)


@pytest.mark.parametrize("value", [[], [1, 2], [{}, {}], [[], [1]]])
def test_a_number_per_layer_must_be_one_number(value: object) -> None:
    with pytest.raises(ConfigError, match="n="):
        reader(n=value).uniform("n")
