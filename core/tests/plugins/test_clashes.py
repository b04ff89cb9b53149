"""Two distributions that want one name or claim: refused for whoever asks, with both named and the
way out as one types it, whichever of them was loaded first."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.levels import API_LEVELS
from pegboard.cli import dispatch
from pegboard.errors import DuplicateError, PluginError
from pegboard.plugins import build_board, loader
from pegboard.plugins.first_party import read_first_party

OWN = "pegboard-own"
SOURCE = """
import os
from pegboard.api.command import Command
from pegboard.api.endpoint import Endpoint
from pegboard.api.hooks import hookimpl
from pegboard.api.model import ModelFamily
from pegboard.api.platform import Platform

PEGBOARD_API = {{"command": 0, "endpoint": 0, "model": 0, "platform": 0}}
{more}


@hookimpl
def pegboard_commands(ctx):
    ctx.metrics.counter("asked", "Calls").add()
    return [Command(n, "Made by {name}", "{name}_module:work") for n in {command}]


@hookimpl
def pegboard_endpoints():
    return [Endpoint(n, "{name}_module:work") for n in {endpoint}]


@hookimpl
def pegboard_model_families():
    return [ModelFamily(n, {{"hf": (n,)}}, "a:b", "a:b", "a:b") for n in {model}]


@hookimpl
def pegboard_platforms():
    return [Platform(name=n, probe="a:b", runtime="a:b") for n in {platform}]


def work():
    print("the work of {name}")
"""


@pytest.fixture(autouse=True)
def first_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release whose only plugin is that of `OWN`."""
    path = tmp_path / "first_party.json"
    path.write_text(json.dumps({OWN: {"group": "pegboard.plugins", "name": "mid", "claims": {}}}))
    monkeypatch.setattr(loader, "read_first_party", lambda: read_first_party(str(path)))


def add(site: Any, name: str, distribution: str = "", more: str = "", **offered: Any) -> None:
    offers = {"command": [], "endpoint": [], "model": [], "platform": [], **offered}
    source = SOURCE.format(name=name, more=more, **offers)
    module = f"{name}_module"
    distribution = distribution or f"{name}-dist"
    site.add(distribution, {f"plugins:{name}": module}, files={f"{module}.py": source})


def states(board: Any) -> dict[str, str]:
    return {record.id: record.state for record in board.plugins}


@pytest.mark.parametrize("surface", ["command", "endpoint", "model", "platform"])
@pytest.mark.parametrize("stranger", ["aaa", "zzz"])
def test_a_stranger_displaces_nothing_of_the_release_however_it_is_called(
    site: Any, stranger: str, surface: str
) -> None:
    add(site, "mid", OWN, **{surface: ["wanted", "further"]})
    add(site, stranger, **{surface: ["wanted", "strange"]})
    add(site, "other", platform=["spare"])
    board = site.load()
    assert states(board) == {"mid": "ready", stranger: "failed", "other": "ready"}
    assert board.require(surface, "further", wanted_by="a test").name == "further"
    assert "strange" not in board.registry(surface)
    way = f"uninstall {stranger}-dist or leave it out with VLLM_PLUGINS=@first-party,other"
    for key in ("require", "find"):
        with pytest.raises(DuplicateError) as caught:
            getattr(board, key)(surface, "wanted", wanted_by="a test")
        for text in (f"{OWN} 1.0 (mid)", f"{stranger}-dist 1.0 ({stranger})", way, "by a test"):
            assert text in str(caught.value)
        assert f"PEGBOARD_OVERRIDE = {{'{surface}': ['wanted'" in str(caught.value)
    reason = next(r.reason for r in board.plugins if r.id == stranger)
    assert way in reason and any(way in notice for notice in board.notices)
    assert states(site.load("@first-party,other")) == {
        "mid": "ready",
        stranger: "blocked",
        "other": "ready",
    }


def test_what_makes_room_is_rolled_back_as_a_whole(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODD_KEPT", "before")
    setting = "os.environ['ODD_KEPT'] = os.environ['ODD_NEW'] = 'by aaa'"
    add(site, "aaa", more=setting, command=["wanted"], platform=["strange"])
    add(site, "mid", OWN, command=["wanted"])
    board = site.load()
    assert states(board) == {"aaa": "failed", "mid": "ready"}
    assert "strange" not in board.registry("platform")
    assert board.metrics.get("pegboard_plugin_aaa_asked") is None
    assert "aaa_module" not in sys.modules and "mid_module" in sys.modules
    assert os.environ["ODD_KEPT"] == "before" and "ODD_NEW" not in os.environ
    with pytest.raises(PluginError, match=r"strict mode refuses to start.*aaa-dist"):
        site.load(policy=loader.LoadPolicy(strict=True))


def test_an_explicit_override_takes_over_also_from_the_release(site: Any) -> None:
    add(site, "mid", OWN, command=["wanted", "further"])
    more = "PEGBOARD_OVERRIDE = {'command': ['wanted']}"
    add(site, "aaa", more=more, command=["wanted"])
    board = site.load()
    assert states(board) == {"aaa": "ready", "mid": "ready"}
    assert board.require("command", "wanted", wanted_by="a test").help == "Made by aaa"


def test_among_strangers_the_later_goes_and_the_ways_out_are_two(site: Any) -> None:
    add(site, "aaa", platform=["wanted"])
    add(site, "zzz", platform=["wanted"])
    board = site.load()
    assert states(board) == {"aaa": "ready", "zzz": "failed"}
    with pytest.raises(DuplicateError) as caught:
        board.require("platform", "wanted", wanted_by="a test")
    assert "uninstall aaa-dist or leave it out with VLLM_PLUGINS=zzz, or uninstall zzz-dist" in (
        str(caught.value)
    )
    assert "leave it out with VLLM_PLUGINS=aaa" in str(caught.value)


def test_a_command_of_the_core_cannot_be_had_and_no_override_is_proposed(site: Any) -> None:
    add(site, "aaa", command=["run"])
    reason = site.load().plugins[0].reason
    assert "pegboard-core" in reason and "leave it out with VLLM_PLUGINS=''" in reason
    assert "PEGBOARD_OVERRIDE" not in reason


@pytest.mark.parametrize("words", [["wanted"], ["group", "wanted"]])
def test_a_command_that_two_want_runs_for_neither(
    site: Any,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add(site, "mid", OWN, command=[" ".join(words), "further"])
    add(site, "aaa", command=[" ".join(words)])
    path = [str(site.folder)]
    board = build_board(environ={}, surfaces=("command",), search_path=path)
    monkeypatch.setattr(dispatch, "_command_board", lambda: board)
    assert dispatch.run(words) == 1
    shown = capsys.readouterr()
    assert "the work of" not in shown.out
    assert "VLLM_PLUGINS=@first-party" in shown.err and f"pegboard {' '.join(words)}" in shown.err
    assert dispatch.run(["further"]) == 0
    assert "the work of mid" in capsys.readouterr().out


def test_every_surface_is_refused_alike(site: Any) -> None:
    board = site.load()
    for surface in API_LEVELS:
        assert board.find(surface, "nothing", wanted_by="a test") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "VLLM_PLUGINS=@first-party,models:twin"),
        ("mid,aaa,twin", "VLLM_PLUGINS=@first-party,models:twin,platforms:twin"),
    ],
)
def test_the_way_out_admits_just_what_was_admitted(
    site: Any, value: str | None, expected: str
) -> None:
    add(site, "mid", OWN, command=["wanted"])
    add(site, "aaa", command=["wanted"])
    site.add_platform("twin-one", "platforms:twin")
    if value is None:
        site.add("twin-two", {"models:twin2": "twin2"}, files={"twin2.py": "PEGBOARD_API = {}"})
        expected = "VLLM_PLUGINS=@first-party,twin2,twin"
    else:
        site.add_platform("twin-two", "models:twin")
    reason = next(r.reason for r in site.load(value).plugins if r.id == "aaa")
    assert reason.partition(";")[2].startswith(
        f" uninstall aaa-dist or leave it out with {expected};"
    )
    admitted = expected.partition("=")[2]
    assert states(site.load(admitted))["aaa"] == "blocked"
