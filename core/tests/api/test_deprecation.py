"""Whoever uses what will go is told once, by name, with a day and a remedy."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pegboard.api.deprecation import DeprecatedWarning, deprecated

CORE = """
import attrs
from pegboard.api.deprecation import deprecated

def old_name():
    deprecated("pegboard.api.kv.Old", until="2030-01-31", instead="New")

@attrs.frozen
class Descriptor:
    old: object = None

    def __attrs_post_init__(self):
        if self.old is not None:
            deprecated("Descriptor.old", until="2030-01-31", instead="Descriptor.new")
"""
"""A function and a descriptor's field that will go, in a module of the core."""


@pytest.fixture
def core() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "pegboard.api.example"}
    exec(CORE, names)
    return names


@pytest.fixture
def plugins() -> Iterator[dict[str, ModuleType]]:
    """Two plugins, the first of several modules."""
    names = ("their_model", "their_model.deep", "other")
    made = {name: ModuleType(name) for name in names}
    sys.modules.update(made)
    yield made
    for name in names:
        del sys.modules[name]


def told(module: ModuleType, line: str, core: dict[str, Any]) -> list[warnings.WarningMessage]:
    """Warnings of a line in a plugin's module."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        names = {**core, "__name__": module.__name__}
        exec(compile("\n\n" + line, f"{module.__name__}.py", "exec"), names)
    return seen


def test_the_warning_names_plugin_name_day_and_remedy(
    core: dict[str, Any], plugins: dict[str, ModuleType]
) -> None:
    (seen,) = told(plugins["their_model.deep"], "old_name()", core)
    assert seen.category is DeprecatedWarning
    assert str(seen.message) == (
        "their_model uses pegboard.api.kv.Old, which may go after 2030-01-31: use New"
    )
    assert (seen.filename, seen.lineno) == ("their_model.deep.py", 3)


def test_each_plugin_is_told_once_of_each_name(
    core: dict[str, Any], plugins: dict[str, ModuleType]
) -> None:
    order = ("their_model", "their_model.deep", "other", "other", "their_model")
    counts = [len(told(plugins[name], "old_name(); old_name()", core)) for name in order]
    assert counts == [1, 0, 1, 0, 0]
    assert len(told(plugins["other"], "Descriptor(old=1)", core)) == 1


def test_a_descriptor_blames_whoever_made_it(
    core: dict[str, Any], plugins: dict[str, ModuleType]
) -> None:
    assert told(plugins["other"], "Descriptor()", core) == []
    (seen,) = told(plugins["other"], "Descriptor(old=1)", core)
    assert str(seen.message).startswith("other uses Descriptor.old, ")
    assert (seen.filename, seen.lineno) == ("other.py", 3)


def test_a_filter_can_make_it_an_error(
    core: dict[str, Any], plugins: dict[str, ModuleType]
) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", category=DeprecatedWarning, module="other")
        for _ in range(2):
            with pytest.raises(DeprecatedWarning, match="other uses"):
                exec("old_name()", {**core, "__name__": "other"})


@pytest.mark.parametrize("day", ["soon", "2030-02-30", "31.1.2030"])
def test_a_day_that_is_none_is_refused(day: str) -> None:
    with pytest.raises(ValueError, match=day):
        deprecated("old", until=day, instead="new")
