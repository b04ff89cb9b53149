"""API levels: read without an import, and refused with the remedy."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pegboard.__about__ import __version__
from pegboard.plugins.levels import IncompatibleError, check_levels
from pegboard.plugins.record import Candidate

EXIT = "\nraise SystemExit('imported')\n"
SUPPORTED = {"model": 3, "quant": 1, "ops": 0}


def candidate(*requires: str) -> Candidate:
    return Candidate("it", "pegboard.models", "it", "their-plugin", "7.0", requires)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1", "declares no API level; add a line such as PEGBOARD_API"),
        ("def f():\n    PEGBOARD_API = {'model': 0}", "declares no API level"),
        ("PEGBOARD_API = dict(model=0)", "is dict(model=0), which has to be run to be known; it"),
        (
            "LEVEL = 0\nPEGBOARD_API = {'model': LEVEL}",
            "in module 'odd_module' is {'model': LEVEL}, which has to be run",
        ),
        ("PEGBOARD_API = '0'", "is '0'; it must be a literal such as {\"model\": 0}, a dict of"),
        ("PEGBOARD_API = -1", "is -1; it must be a literal"),
        ("PEGBOARD_API = 1.5", "is 1.5; it must be a literal"),
        ("PEGBOARD_API = 0", "This core runs level 0 of alias, attention, checkpoint, "),
        ("PEGBOARD_API = {}", "is {}; it must be a literal"),
        ("PEGBOARD_API = ['model']", "is ['model']; it must be a literal"),
        ("PEGBOARD_API = {0: 'model'}", "has the key 0; it must be a literal"),
        ("PEGBOARD_API = {'model': '0'}", "has '0' as the level of 'model'; a level is a whole"),
        ("PEGBOARD_API = {'model': True}", "has True as the level of 'model'"),
        ("PEGBOARD_API = {'model': -1}", "number, 0 or above; this core runs level 0"),
        ("PEGBOARD_API = {'model': 1.5}", "has 1.5 as the level of 'model'"),
        ("PEGBOARD_API = {'model': None}", "has None as the level of 'model'"),
        ("PEGBOARD_API = {'modle': '1'}", "has '1' as the level of 'modle'"),
        ("PEGBOARD_API = {'modle': 0}", "nearest: 'model'"),
        (
            "PEGBOARD_API = {'model': 9}",
            "needs level 9 of the 'model' API, this core runs level 0:",
        ),
    ],
)
def test_an_incompatible_plugin_is_refused_before_import(
    site: Any, source: str, reason: str
) -> None:
    module = site.add_source(source + EXIT)
    (record,) = site.load().plugins
    assert record.state == "incompatible"
    assert reason in record.reason
    assert module not in sys.modules


@pytest.mark.parametrize(
    "source", ["PEGBOARD_API = {'model': 0", "\x00", "# coding: no-such-coding\nPEGBOARD_API = 1"]
)
def test_a_source_that_cannot_be_read_is_a_failure(site: Any, source: str) -> None:
    site.add_source(source)
    (record,) = site.load().plugins
    assert record.state == "failed" and "source of module 'odd_module'" in record.reason


def test_an_annotated_declaration_counts(site: Any) -> None:
    source = "PEGBOARD_API: dict[str, int] = {'model': 0}\n"
    hook = "@hookimpl\ndef pegboard_model_families():\n    return []\n"
    site.add_source(source + "from pegboard.api.hooks import hookimpl\n" + hook)
    (record,) = site.load().plugins
    assert record.state == "ready" and record.surfaces == ("model",)


def test_the_parent_package_is_not_imported_to_read_the_level(site: Any) -> None:
    files = {"outer/__init__.py": EXIT, "outer/plugin.py": "PEGBOARD_API = {'model': 5}"}
    site.add("outer", {"models:outer": "outer.plugin"}, files=files)
    (record,) = site.load().plugins
    assert record.state == "incompatible" and "level 5" in record.reason


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ({"model": 3}, None),
        ({"model": 3, "quant": 1}, None),
        (
            {"model": 4},
            "needs level 4 of the 'model' API, this core runs levels 2 and 3: upgrade pegboard",
        ),
        ({"model": 1}, "written for level 1 .* runs levels 2 and 3: upgrade their-plugin"),
        ({"quant": 1, "model": 0}, "written for level 0 .* upgrade their-plugin"),
        ({"sound": 1}, "'sound'.* which this core does not have"),
    ],
)
def test_level_n_runs_plugins_of_n_and_n_minus_1(
    declared: dict[str, int], reason: str | None
) -> None:
    if reason is None:
        assert check_levels(candidate(), declared, "9.9", SUPPORTED) == ()
    else:
        with pytest.raises(IncompatibleError, match=reason):
            check_levels(candidate(), declared, "9.9", SUPPORTED)


def test_a_plugin_of_the_level_before_is_told_that_its_time_ends() -> None:
    (note,) = check_levels(candidate(), {"model": 2, "quant": 1}, "9.9", SUPPORTED)
    assert "level 2 of the 'model' API, this core has 3 and the next" in note
    assert "ask for a newer their-plugin" in note


@pytest.mark.parametrize(
    "requirement",
    [
        "pegboard-core==1.2",
        "Pegboard_Core == 1.2.0",
        "pegboard-core (==1.2)",
        "pegboard-core[gpu]==1.2",
        'pegboard-core==1.2; python_version >= "3.10"',
    ],
)
def test_level_0_is_content_with_the_exact_core(requirement: str) -> None:
    assert check_levels(candidate(requirement), {"ops": 0}, "1.2", SUPPORTED) == ()
    assert check_levels(candidate(requirement), {"ops": 0}, "1.2+local", SUPPORTED) == ()


@pytest.mark.parametrize(
    "requires",
    [
        (),
        ("pegboard-core",),
        ("pegboard-core>=1.2",),
        ("pegboard-core==1.*",),
        ("pegboard-core-extras==1.2",),
        ('pegboard-core==1.2; extra == "dev"',),
    ],
)
def test_level_0_without_an_exact_core_gets_a_note(requires: tuple[str, ...]) -> None:
    (note,) = check_levels(candidate(*requires), {"ops": 0}, "1.2", SUPPORTED)
    assert "their-plugin does not require pegboard-core==1.2" in note
    assert check_levels(candidate(*requires), {"quant": 1}, "1.2", SUPPORTED) == ()


def test_level_0_made_for_another_core_is_refused() -> None:
    with pytest.raises(IncompatibleError, match=r"made for pegboard-core 1\.1 exactly.*1\.2"):
        check_levels(candidate("pegboard-core==1.1"), {"ops": 0}, "1.2", SUPPORTED)


def test_the_note_stands_on_the_record(site: Any) -> None:
    site.add_platform("acme", "platforms:acme", requires=())
    board = site.load()
    assert board.plugins[0].state == "ready"
    assert f"pegboard-core=={__version__}" in board.plugins[0].notes[0]
    assert any("platforms:acme" in notice for notice in board.notices)
