"""What the board says about something that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pegboard.plugins.loader as loader
from pegboard.api.levels import API_LEVELS
from pegboard.api.platform import Platform
from pegboard.errors import MissingPluginError, PluginError
from pegboard.plugins.collect import DESCRIPTOR_TYPES
from pegboard.plugins.first_party import read_first_party
from pegboard.plugins.registry import ClashError, Entry, Provenance, Registry

LISTED = {
    "pegboard-platform-acme": {
        "group": "pegboard.platforms",
        "name": "acme",
        "claims": {"platform": ["acme"]},
    },
    "pegboard-platform-other": {
        "group": "pegboard.platforms",
        "name": "other",
        "claims": {"platform": ["other"]},
    },
}


@pytest.fixture
def first_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "first_party.json"
    path.write_text(json.dumps(LISTED))
    monkeypatch.setattr(loader, "read_first_party", lambda: read_first_party(str(path)))


def missing(board: Any, key: str | None, surface: str = "platform") -> str:
    if key is None:
        with pytest.raises(MissingPluginError) as caught:
            board.require_any(surface, wanted_by="the engine")
    else:
        with pytest.raises(MissingPluginError) as caught:
            board.require(surface, key, wanted_by="--platform")
    return str(caught.value)


def test_what_is_there_is_returned(site: Any) -> None:
    site.add_platform("acme-dist", "platforms:acme")
    board = site.load()
    assert isinstance(board.require("platform", "acme", wanted_by="a test"), Platform)
    assert board.require_any("platform", wanted_by="a test").names() == ("acme",)


@pytest.mark.usefixtures("first_party")
def test_a_distribution_that_is_not_installed_is_named(site: Any) -> None:
    message = missing(site.load(), "acme")
    assert message == (
        "no loaded plugin provides platform 'acme', wanted by --platform. "
        "pegboard-platform-acme provides it and is not installed: "
        "pip install pegboard-platform-acme."
    )


@pytest.mark.usefixtures("first_party")
def test_a_blocked_plugin_is_named_with_the_variable_its_value_and_the_entry(site: Any) -> None:
    site.add_platform("pegboard-platform-acme", "platforms:acme")
    message = missing(site.load("something-else"), "acme")
    assert "pegboard-platform-acme 1.0 provides it and is installed" in message
    assert "VLLM_PLUGINS='something-else' leaves it out: add 'acme'" in message
    assert "pip install" not in message
    assert "VLLM_PLUGINS=''" in missing(site.load(""), "acme")


@pytest.mark.usefixtures("first_party")
def test_no_platform_at_all_names_every_way_out(site: Any) -> None:
    site.add_platform("pegboard-platform-acme", "platforms:acme")
    message = missing(site.load(""), None)
    assert message.startswith("no platform is loaded, wanted by the engine.")
    assert "add 'acme'" in message
    assert "pip install pegboard-platform-other" in message


@pytest.mark.usefixtures("first_party")
def test_a_failed_plugin_is_named_with_its_failure(site: Any) -> None:
    files = {"bad.py": "PEGBOARD_API = {'platform': 0}\nraise OSError('libacme.so is missing')"}
    site.add("pegboard-platform-acme", {"platforms:acme": "bad"}, files=files)
    message = missing(site.load(), "acme")
    assert "it is failed: OSError: libacme.so is missing" in message


@pytest.mark.usefixtures("first_party")
def test_a_stranger_that_did_not_load_is_a_possibility(site: Any) -> None:
    site.add("stranger", {"plugins:far": "far"}, files={"far.py": "PEGBOARD_API = {'platform': 7}"})
    message = missing(site.load(), "far-out")
    assert "stranger 1.0 might provide it; it is installed, but it is incompatible" in message
    assert "stranger" not in missing(site.load(), "x", surface="quant")
    assert "stranger" not in missing(site.load(), "acme"), "the list knows better"


def test_a_listed_distribution_of_unknown_claims_is_a_possibility(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "first_party.json"
    path.write_text(json.dumps({"new": {"group": "pegboard.platforms", "name": "n", "claims": {}}}))
    monkeypatch.setattr(loader, "read_first_party", lambda: read_first_party(str(path)))
    site.add_platform("new", "platforms:n")
    assert "new 1.0 might provide it" in missing(site.load(""), "acme")


@pytest.mark.usefixtures("first_party")
def test_a_plugin_known_not_to_help_is_not_mentioned(site: Any) -> None:
    site.add_platform("pegboard-platform-other", "platforms:other")
    assert "other" not in missing(site.load(""), "acme")


def test_where_nothing_is_known_the_loaded_names_are_listed(site: Any) -> None:
    site.add_platform("one-dist", "platforms:one")
    message = missing(site.load(), "onee")
    assert "Loaded: one (nearest: 'one')" in message


def test_an_unknown_surface_is_refused(site: Any) -> None:
    with pytest.raises(PluginError, match="no surface 'platfrom'; there are alias, attention"):
        site.load().registry("platfrom")


def test_every_surface_has_a_registry_and_a_descriptor_type(site: Any) -> None:
    board = site.load()
    assert set(DESCRIPTOR_TYPES) == set(API_LEVELS)
    assert {board.registry(surface).surface for surface in API_LEVELS} == set(API_LEVELS)


def test_an_absent_list_is_tolerated(tmp_path: Path) -> None:
    assert read_first_party(str(tmp_path / "none.json")) == ()


def test_the_shipped_list_can_be_read() -> None:
    assert {entry.group.partition(".")[0] for entry in read_first_party()} <= {"pegboard"}


class Thing:
    """A descriptor for registry tests."""

    def __init__(self, name: str, *claims: str) -> None:
        self.name = name
        self._claims = claims

    def claims(self) -> tuple[str, ...]:
        return self._claims


def entry(distribution: str, name: str, *claims: str) -> Entry[Thing]:
    return Entry(Thing(name, *claims), Provenance(distribution, "1", distribution, "g"))


def test_a_registry_finds_by_name_and_by_claim() -> None:
    registry = Registry("model", [entry("d1", "a", "A1", "A2", "a"), entry("d2", "b")])
    assert registry.get("A2") is registry.get("a") is not None
    assert registry.get("c") is None
    assert registry.names() == ("a", "b") and registry.keys() == ("a", "A1", "A2", "b")
    assert [thing.name for thing in registry] == ["a", "b"] and len(registry) == 2
    assert "A1" in registry and "B1" not in registry
    assert registry.provenance("A1").distribution == "d1"


@pytest.mark.parametrize("second", [("x", "A"), ("A",), ("a",), ("x", "a")])
def test_names_and_claims_share_one_namespace(second: tuple[str, ...]) -> None:
    registry = Registry("model", [entry("d1", "a", "A")])
    with pytest.raises(ClashError, match=r"by both d1 1 .* and d2 1"):
        registry.extended([entry("d2", *second)])
    assert registry.names() == ("a",)


def test_every_clash_is_reported() -> None:
    registry = Registry("model", [entry("d1", "a", "A", "B")])
    with pytest.raises(ClashError, match="2 more clashes") as caught:
        registry.extended([entry("d2", "a", "A", "B", "C")])
    assert [clash.key for clash in caught.value.clashes] == ["a", "A", "B"]


@pytest.mark.usefixtures("first_party")
def test_what_did_not_load_is_told_also_where_something_else_did(site: Any) -> None:
    site.add_platform("pegboard-platform-acme", "platforms:acme")
    site.add("stranger", {"platforms:far": "far"}, files={"far.py": "PEGBOARD_API = {'ops': 0}"})
    site.add_platform("sound", "platforms:sound")
    said = site.load("sound").left_out("platform")
    assert "pegboard-platform-acme 1.0 provides it" in said
    assert "VLLM_PLUGINS='sound' leaves it out: add 'acme' to it" in said
    assert "stranger" not in said, "it registers nothing of this surface"
    assert site.load().left_out("quant") == ""
