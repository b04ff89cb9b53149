"""Whoever asks for what a plugin would bring that the allowlist leaves out is told so, and which
value lets it load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pegboard import EngineConfig, SamplingParams
from pegboard.api.levels import API_LEVELS
from pegboard.cli import dispatch
from pegboard.config.logits import make_roster
from pegboard.config.sources import select_source
from pegboard.errors import CheckpointError, MissingPluginError, RequestError
from pegboard.plugins import build_board

WAYS = {
    "": "VLLM_PLUGINS='' leaves it out: add 'far' to it (VLLM_PLUGINS=far; where it is not set, "
    "all plugins load)",
    "a,b*": "VLLM_PLUGINS='a,b*' leaves it out: add 'far' to it (VLLM_PLUGINS='a,b*,far')",
}
TOLD = "far 1.0 might provide it; it is installed, but "


def add(site: Any, surface: str) -> None:
    """A plugin of this surface that cannot even be imported."""
    source = f"PEGBOARD_API = {{{surface!r}: 0}}\nraise SystemExit('imported')\n"
    site.add("far", {"plugins:far": "far_module"}, files={"far_module.py": source})


@pytest.mark.parametrize("value", WAYS)
@pytest.mark.parametrize("surface", API_LEVELS)
def test_whatever_is_required(site: Any, surface: str, value: str) -> None:
    add(site, surface)
    with pytest.raises(MissingPluginError) as caught:
        site.load(value).require(surface, "thing", wanted_by="a test")
    assert TOLD + WAYS[value] in str(caught.value)
    other = "quant" if surface != "quant" else "tracer"
    assert site.load(value).chance(other, "thing") == ""


def test_an_architecture_that_an_alias_might_have(site: Any) -> None:
    add(site, "alias")
    assert TOLD + WAYS[""] in site.load("").chance("model", "hf:OddForCausalLM")


@pytest.mark.parametrize("value", WAYS)
def test_an_argument_of_a_logits_processor(site: Any, value: str) -> None:
    add(site, "logits")
    roster = make_roster(site.load(value), EngineConfig(model="m"))
    with pytest.raises(RequestError) as caught:
        roster.check(SamplingParams(extra_args={"odd": 1}), 10)
    assert "extra_args['odd'] is not allowed" in str(caught.value)
    assert TOLD + WAYS[value] in str(caught.value)
    nothing = make_roster(site.load(), EngineConfig(model="m"))
    with pytest.raises(RequestError, match="known arguments: there is none"):
        nothing.check(SamplingParams(extra_args={"odd": 1}), 10)


@pytest.mark.parametrize("value", WAYS)
@pytest.mark.parametrize("words", [["greet"], ["bench", "greet"]])
def test_a_command(
    site: Any,
    words: list[str],
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    add(site, "command")
    path, environ = [str(site.folder)], {"VLLM_PLUGINS": value}
    board = build_board(environ=environ, surfaces=("command",), search_path=path)
    monkeypatch.setattr(dispatch, "_command_board", lambda: board)
    assert dispatch.run(words) == 2
    said = capsys.readouterr().err
    assert f"there is no command '{' '.join(words)}'" in said and TOLD + WAYS[value] in said


def test_a_directory_that_nobody_reads(site: Any, tmp_path: Path) -> None:
    add(site, "checkpoint")
    (tmp_path / "model").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint source reads this") as caught:
        select_source(site.load(""), str(tmp_path / "model"))
    assert TOLD + WAYS[""] in str(caught.value)


def test_the_value_that_is_told_lets_it_load(site: Any) -> None:
    for name, group in (("one", "models"), ("two", "platforms")):
        site.add_platform(name, f"{group}:{'same' if name == 'one' else name}")
    site.add_platform("three", "attention:same")
    reasons = {r.distribution: r.reason for r in site.load("two").plugins}
    assert reasons["one"].endswith("add 'models:same' to it (VLLM_PLUGINS=two,models:same)")
    ready = [r.distribution for r in site.load("two,models:same").plugins if r.state == "ready"]
    assert ready == ["one", "two"]
