"""Shadowing: only what a plugin declares to override gives way."""

from __future__ import annotations

from typing import Any

import pytest

from pegboard.api.platform import Platform
from pegboard.errors import DuplicateError, MissingPluginError

MODULE = """
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl
from pegboard.api.model import ModelFamily
from pegboard.api.platform import Platform
from pegboard.api.scheduler_class import SchedulerClass

PEGBOARD_API = {{"command": 0, "model": 0, "platform": 0, "scheduler": 0}}
PEGBOARD_OVERRIDE = {override}


@hookimpl
def pegboard_platforms(ctx):
    return [Platform(name=n, probe=f"{{ctx.plugin_id}}:p", runtime="a:b") for n in {platforms}]


@hookimpl
def pegboard_model_families(ctx):
    for name, claims in {families}.items():
        yield ModelFamily(name, {{"hf": claims}}, f"{{ctx.plugin_id}}:c", "a:b", "a:b")


@hookimpl
def pegboard_commands():
    return [Command(n, "", "a:b") for n in {commands}]


@hookimpl
def pegboard_schedulers():
    return [SchedulerClass(n, "a:b") for n in {schedulers}]
"""


def add(site: Any, name: str, override: object = None, **offered: object) -> None:
    usual = {"platforms": [], "families": {}, "commands": [], "schedulers": []}
    source = MODULE.format(override=override or {}, **{**usual, **offered})
    site.add(f"{name}-dist", {f"plugins:{name}": name}, files={f"{name}.py": source})


def states(board: Any) -> dict[str, str]:
    return {record.id: record.state for record in board.plugins}


def provider(board: Any, surface: str, key: str) -> str:
    return board.provenance(surface, key).id


# The names make the overriding plugin the first to load, then the last.
@pytest.mark.parametrize("taker", ["aaa", "zzz"])
def test_an_override_wins_whichever_is_loaded_first(site: Any, taker: str) -> None:
    add(site, "mid", platforms=["chip"])
    add(site, taker, {"platform": ["chip"]}, platforms=["chip"])
    board = site.load()
    assert states(board) == {"mid": "shadowed", taker: "ready"}
    (platform,) = board.registry("platform")
    assert platform.probe.target == f"{taker}:p"
    assert board.require("platform", "chip", wanted_by="a test") is platform
    assert provider(board, "platform", "chip") == taker
    shadowed = next(record for record in board.plugins if record.id == "mid")
    assert "its platform 'chip' is overridden as a whole by " + f"{taker}-dist 1.0" in (
        shadowed.reason
    )


@pytest.mark.parametrize("taker", ["aaa", "zzz"])
def test_what_is_not_overridden_stays_and_a_note_tells_of_the_rest(site: Any, taker: str) -> None:
    add(site, "mid", families={"llama": ("A", "B")}, platforms=["chip", "other"])
    add(
        site,
        taker,
        {"model": ["hf:A"], "platform": ["other"]},
        families={"mine": ("A",)},
        platforms=["other"],
    )
    board = site.load()
    assert states(board) == {"mid": "ready", taker: "ready"}
    assert provider(board, "model", "hf:A") == taker
    assert provider(board, "model", "hf:B") == "mid"
    assert provider(board, "platform", "chip") == "mid"
    assert sorted(board.registry("model").names()) == ["llama", "mine"]
    notes = next(record.notes for record in board.plugins if record.id == "mid")
    assert [note for note in notes if "overridden" in note] == [
        f"its model 'llama' is overridden by {taker}-dist 1.0 ('hf:A')",
        f"its platform 'other' is overridden as a whole by {taker}-dist 1.0 ('other')",
    ]


def test_a_descriptor_of_which_every_claim_is_overridden_is_off_the_board(site: Any) -> None:
    add(site, "mid", families={"llama": ("A", "B")})
    add(site, "zzz", {"model": ["hf:A", "hf:B"]}, families={"mine": ("A", "B")})
    board = site.load()
    assert states(board)["mid"] == "shadowed"
    assert board.registry("model").names() == ("mine",)
    assert "llama" not in board.registry("model")


def test_with_its_name_a_descriptor_loses_its_claims(site: Any) -> None:
    add(site, "mid", families={"llama": ("A", "B")})
    add(site, "zzz", {"model": ["llama", "hf:A"]}, families={"llama": ("A",)})
    board = site.load()
    assert board.registry("model").keys() == ("llama", "hf:A")
    with pytest.raises(MissingPluginError, match=r"mid-dist 1\.0 might provide it.*is shadowed"):
        board.require("model", "hf:B", wanted_by="a test")


def test_without_a_declaration_nothing_gives_way(site: Any) -> None:
    add(site, "mid", platforms=["chip"])
    add(site, "zzz", {"model": ["chip"]}, platforms=["chip"])
    board = site.load()
    assert states(board) == {"mid": "ready", "zzz": "failed"}


def test_two_that_override_one_key_clash(site: Any) -> None:
    add(site, "mid", platforms=["chip"])
    for name in ("yyy", "zzz"):
        add(site, name, {"platform": ["chip"]}, platforms=["chip"])
    board = site.load()
    assert states(board) == {"mid": "shadowed", "yyy": "ready", "zzz": "failed"}
    with pytest.raises(DuplicateError, match=r"both yyy-dist 1\.0 .* and zzz-dist 1\.0"):
        board.require("platform", "chip", wanted_by="a test")


def test_a_plugin_that_fails_overrides_nothing(site: Any) -> None:
    add(site, "mid", platforms=["chip", "other"])
    add(site, "zzz", {"platform": ["chip"]}, platforms=["chip", "other"])
    board = site.load()
    assert states(board) == {"mid": "ready", "zzz": "failed"}
    assert provider(board, "platform", "chip") == "mid"


def test_an_override_of_what_is_not_installed_is_no_mistake(site: Any) -> None:
    add(site, "zzz", {"platform": ["chip", "absent"]}, platforms=["chip"])
    assert states(site.load()) == {"zzz": "ready"}


def test_what_an_embedding_program_brings_can_be_overridden(site: Any) -> None:
    add(site, "zzz", {"platform": ["chip"]}, platforms=["chip"])
    board = site.load(extra=[("platform", Platform("chip", "core:p", "a:b"))])
    assert provider(board, "platform", "chip") == "zzz"


@pytest.mark.parametrize(
    ("surface", "key", "kind"),
    [("command", "run", "commands"), ("scheduler", "token-budget", "schedulers")],
)
def test_the_cores_own_commands_and_scheduler_stay(
    site: Any, surface: str, key: str, kind: str
) -> None:
    add(site, "zzz", {surface: [key]}, **{kind: [key]})
    board = site.load()
    assert states(board) == {"zzz": "failed"}
    assert f"the {surface} '{key}', which is the core's own" in board.plugins[0].reason
    assert board.provenance(surface, key) is board.core


@pytest.mark.parametrize("override", [["chip"], {"platform": "chip"}, {"quant": ["chip"]}])
def test_a_malformed_override_is_told(site: Any, override: object) -> None:
    add(site, "zzz", override, platforms=["chip"])
    (record,) = site.load().plugins
    assert record.state == "failed"
    assert "PEGBOARD_OVERRIDE in module 'zzz' must be" in record.reason
