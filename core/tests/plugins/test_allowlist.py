"""The allowlist: every form of an entry, and what it does before any import."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pegboard.errors import ConfigError
from pegboard.plugins import LoadPolicy
from pegboard.plugins.allowlist import Allowlist
from pegboard.plugins.record import Candidate

FIRST_PARTY = ("pegboard-model-llama", "pegboard-platform-cpu")
CANDIDATES = (
    Candidate("llama", "pegboard.models", "a", "pegboard-model-llama", "1"),
    Candidate("cpu", "pegboard.platforms", "b", "pegboard-platform-cpu", "1"),
    Candidate("llama", "pegboard.plugins", "c", "pegboard-parser-llama", "1"),
    Candidate("weird", "pegboard.quant", "d", "acme-quant-tools", "1"),
)
ALL = {c.qualified for c in CANDIDATES}


@pytest.mark.parametrize(
    ("value", "admitted"),
    [
        (None, ALL),
        ("", set()),
        ("   ", set()),
        (",", set()),
        (" , ,", set()),
        ("cpu", {"platforms:cpu"}),
        ("  cpu  ,", {"platforms:cpu"}),
        ("cpu,,weird,", {"platforms:cpu", "quant:weird"}),
        ("llama", {"models:llama", "plugins:llama"}),
        ("LLAMA", set()),
        ("models:llama", {"models:llama"}),
        ("pegboard.models:llama", {"models:llama"}),
        (" plugins : llama ", {"plugins:llama"}),
        ("quant:llama", set()),
        ("models:", set()),
        ("pegboard-platform-cpu", {"platforms:cpu"}),
        ("Pegboard_Platform.CPU", {"platforms:cpu"}),
        ("acme.quant__tools", {"quant:weird"}),
        ("pegboard-*", {"models:llama", "platforms:cpu", "plugins:llama"}),
        ("Pegboard_Model*", {"models:llama"}),
        ("w?ird", {"quant:weird"}),
        ("[cw]*", {"platforms:cpu", "quant:weird"}),
        ("models:*", {"models:llama"}),
        ("*", ALL),
        ("@first-party", {"models:llama", "platforms:cpu"}),
        ("@first-party,weird", {"models:llama", "platforms:cpu", "quant:weird"}),
        ("@First-Party", set()),
        ("pegboard-model", set()),
    ],
)
def test_it_admits_exactly_what_its_entries_name(value: str | None, admitted: set[str]) -> None:
    allowlist = Allowlist.parse(value, FIRST_PARTY)
    assert {c.qualified for c in CANDIDATES if allowlist.admits(c)} == admitted


def test_only_the_variable_is_read() -> None:
    assert Allowlist.from_environ({}).value is None
    assert Allowlist.from_environ({"VLLM_PLUGINS": ""}).value == ""
    assert Allowlist.from_environ({"VLLM_PLUGINS": "a, b"}).entries == ("a", "b")


@pytest.mark.parametrize(
    ("entry", "strangers"),
    [
        ("pegboard-*", "pegboard-parser-llama"),
        ("*", "acme-quant-tools, pegboard-parser-llama"),
        ("pegboard-p*-cpu", None),
        ("@first-party", None),
        ("weird", None),
    ],
)
def test_a_glob_that_admits_strangers_says_so_once(entry: str, strangers: str | None) -> None:
    notices = Allowlist.parse(entry, FIRST_PARTY).stranger_notices(CANDIDATES)
    assert len(notices) == (strangers is not None)
    if strangers:
        assert strangers in notices[0] and entry in notices[0]


def test_a_plugin_left_out_is_never_imported(site: Any) -> None:
    module = site.add_source("raise SystemExit('imported')", key="models:left-out")
    kept = site.add_platform("kept", "platforms:kept")
    board = site.load("kept")
    assert [(r.id, r.state) for r in board.plugins] == [("left-out", "blocked"), ("kept", "ready")]
    assert module not in sys.modules and kept in sys.modules
    assert "VLLM_PLUGINS='kept'" in board.plugins[0].reason
    assert "'left-out'" in board.plugins[0].reason


def test_a_package_left_out_is_not_imported_to_read_its_source(site: Any) -> None:
    site.add(
        "nested",
        {"models:nested": "nested_pkg.inner.plugin"},
        files={
            "nested_pkg/__init__.py": "raise SystemExit('imported')",
            "nested_pkg/inner/__init__.py": "",
            "nested_pkg/inner/plugin.py": "PEGBOARD_API = {'model': 0}",
        },
    )
    board = site.load("")
    assert board.plugins[0].state == "blocked" and board.plugins[0].surfaces == ("model",)
    assert "nested_pkg" not in sys.modules


def test_an_entry_without_a_match_is_a_warning_with_the_nearest_name(site: Any) -> None:
    site.add_platform("acme-platform", "platforms:acme")
    notices = site.load("acme, acmee").notices
    assert len(notices) == 1
    assert "'acmee'" in notices[0] and "did you mean 'acme'?" in notices[0]
    (notice,) = site.load("ACME").notices
    assert "'ACME' matches no installed plugin; did you mean 'acme'?" in notice


def test_an_entry_without_a_match_is_an_error_in_strict_mode(site: Any) -> None:
    site.add_platform("acme-platform", "platforms:acme")
    with pytest.raises(ConfigError, match=r"'acme-platfrom' matches no.*'acme-platform'"):
        site.load("acme-platfrom", policy=LoadPolicy(strict=True))


def test_an_installed_distribution_without_plugins_is_a_match(site: Any) -> None:
    site.add("only-parsers", {}, files={"only_parsers.py": ""})
    assert site.load("Only_Parsers").notices == ()


def test_a_class_named_by_path_must_come_from_an_allowed_distribution(site: Any) -> None:
    site.add("parsers", {}, files={"parsers/__init__.py": "raise SystemExit", "parsers/x.py": ""})
    site.add_platform("acme-platform", "platforms:acme")
    (site.folder / "loose.py").write_text("")
    paths = {
        "parsers": "parsers.x:Parser",
        "dotted": "parsers.x.Parser",
        "acme": "acme_platform_module:Thing",
        "loose": "loose:Thing",
        "core": "pegboard.errors:ConfigError",
        "absent": "no_such_module_here:Thing",
        "library": "json.decoder:JSONDecoder",
    }

    def allowed(value: str | None) -> set[str]:
        board = site.load(value)
        return {name for name, path in paths.items() if board.allows_module(path)}

    assert allowed(None) == set(paths)
    assert allowed("") == {"core"}
    assert allowed("parsers") == {"core", "parsers", "dotted"}
    assert allowed("pars*") == {"core", "parsers", "dotted"}
    assert allowed("platforms:acme") == {"core", "acme"}
    assert "parsers" not in sys.modules


def test_a_class_in_an_editable_install_belongs_to_its_distribution(
    site: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    source = tmp_path / "my source"
    source.mkdir()
    (source / "edited.py").write_text("")
    monkeypatch.syspath_prepend(str(source))
    site.add("edited", {})
    (info,) = site.folder.glob("edited-*")
    url = source.as_uri()
    (info / "direct_url.json").write_text(f'{{"url": "{url}", "dir_info": {{"editable": true}}}}')
    assert site.load("edited").allows_module("edited:Thing")
    assert not site.load("other").allows_module("edited:Thing")


@pytest.mark.parametrize(
    ("value", "only", "ready"),
    [
        (None, "acme", {"acme"}),
        (None, "", set()),
        ("acme", "acme,other", {"acme"}),
        ("acme", "other", set()),
        ("*", " platforms:o* , ", {"other"}),
        (None, "@first-party", set()),
    ],
)
def test_a_second_list_must_admit_a_plugin_too(
    site: Any, value: str | None, only: str, ready: set[str]
) -> None:
    for name in ("acme", "other"):
        site.add_platform(f"{name}-platform", f"platforms:{name}")
    board = site.load(value, policy=LoadPolicy(only=only))
    assert {record.id for record in board.plugins if record.state == "ready"} == ready
    assert {record.state for record in board.plugins} <= {"ready", "blocked"}


def test_the_list_that_leaves_a_plugin_out_is_named(site: Any) -> None:
    site.add_platform("acme-platform", "platforms:acme")
    (record,) = site.load("acme", policy=LoadPolicy(only="acne")).plugins
    assert record.reason == (
        "no_plugins_except='acne' leaves it out: add 'acme' to it (--no-plugins-except acne,acme)"
    )
    (record,) = site.load("acne", policy=LoadPolicy(only="acme")).plugins
    assert record.reason == (
        "VLLM_PLUGINS='acne' leaves it out: add 'acme' to it (VLLM_PLUGINS=acne,acme)"
    )


def test_entries_of_the_second_list_are_looked_at_like_the_others(site: Any) -> None:
    site.add_platform("acme-platform", "platforms:acme")
    (stranger, unmatched) = sorted(
        site.load(policy=LoadPolicy(only="acme,ac*,acmee")).notices, key=lambda n: "did you" in n
    )
    assert "no_plugins_except entry 'ac*' also admits acme-platform" in stranger
    assert "no_plugins_except entry 'acmee' matches no installed plugin" in unmatched
    with pytest.raises(ConfigError, match="no_plugins_except entry 'acmee'"):
        site.load(policy=LoadPolicy(only="acmee", strict=True))


def test_a_class_named_by_path_must_pass_both_lists(site: Any) -> None:
    site.add("parsers", {}, files={"parsers/__init__.py": "", "parsers/x.py": ""})
    path = "parsers.x:Parser"
    assert site.load("parsers", policy=LoadPolicy(only="parsers")).allows_module(path)
    assert not site.load("parsers", policy=LoadPolicy(only="other")).allows_module(path)
    assert not site.load(policy=LoadPolicy(only="other")).allows_module(path)
