"""Sabotage by more than a plugin's own loading: by two plugins together, by what is installed, by
another process, and by parts that are imported later."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.api.descriptor import LazyRef
from pegboard.api.platform import Platform
from pegboard.errors import DuplicateError, PluginError
from pegboard.plugins import LoadPolicy, load_plugins
from pegboard.plugins.doctor import examine
from pegboard.plugins.lock import make_lock

FAMILY = """
from pegboard.api.hooks import hookimpl
from pegboard.api.model import ModelFamily

PEGBOARD_API = {{"model": 0}}


@hookimpl
def pegboard_model_families():
    return [ModelFamily({name!r}, {{"hf": ("OddForCausalLM",)}}, "a:b", "a:b", "a:b")]
"""
LAZY = """
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0}


@hookimpl
def pegboard_platforms():
    return [Platform("odd", "odd_lazy:probe", "odd_lazy:runtime")]
"""


def add(site: Any, distribution: str, key: str, source: str, **options: Any) -> None:
    module = f"{distribution}_module"
    site.add(distribution, {key: module}, files={f"{module}.py": source}, **options)


def states(board: Any) -> dict[str, str]:
    return {record.distribution: record.state for record in board.plugins}


class TestTwo:
    """Two that want the same."""

    def test_one_id_of_two_distributions(self, site: Any, rest: Any) -> None:
        add(site, "odd1", "plugins:odd", "raise SystemExit")
        add(site, "odd2", "models:odd", "raise SystemExit", version="2.0")
        board = site.load()
        assert states(board) == {"alpha": "ready", "zulu": "ready"} | dict.fromkeys(
            ("odd1", "odd2"), "failed"
        )
        for record in board.plugins[:1]:
            assert "'odd' is used by models:odd of odd2 2.0 and plugins:odd of odd1 1.0" in (
                record.reason
            )
            assert (
                "uninstall odd2 or leave it out with VLLM_PLUGINS=alpha,plugins:odd,zulu, or"
                in (record.reason)
            )
            assert "odd1 or leave it out with VLLM_PLUGINS=models:odd,alpha,zulu" in record.reason
        rest.check(board)

    def test_one_architecture_of_two_families(self, site: Any, rest: Any) -> None:
        add(site, "odd1", "models:odd1", FAMILY.format(name="one"))
        add(site, "odd2", "models:odd2", FAMILY.format(name="two"))
        board = site.load()
        assert states(board) == {
            "alpha": "ready",
            "odd1": "ready",
            "odd2": "failed",
            "zulu": "ready",
        }
        with pytest.raises(DuplicateError) as caught:
            board.require("model", "hf:OddForCausalLM", wanted_by="config.json")
        for text in ("odd1 1.0 (odd1) and odd2 1.0 (odd2)", "uninstall odd1 or", "by config.json"):
            assert text in str(caught.value)
        assert board.registry("model").names() == ("one",)
        assert "odd2_module" not in sys.modules
        only = site.load("alpha,odd2,zulu")
        assert only.require("model", "hf:OddForCausalLM", wanted_by="a test").name == "two"

    def test_a_cycle_in_the_order(self, site: Any, rest: Any) -> None:
        end = "\nraise SystemExit\n"
        wish = "PEGBOARD_API = {'platform': 0}\nPEGBOARD_ORDER = {'before': ['%s', 'zulu']}"
        add(site, "odd1", "plugins:odd1", wish % "odd2" + end)
        add(site, "odd2", "plugins:odd2", wish % "odd1" + end)
        board = site.load()
        for name, other in (("odd1", "odd2"), ("odd2", "odd1")):
            (record,) = (r for r in board.plugins if r.id == name)
            assert record.state == "failed"
            assert f"cycle: {name} before {other} before {name}; see PEGBOARD_ORDER" in (
                record.reason
            )
        rest.check(board)

    def test_claims_that_fail_when_others_register(self, site: Any, rest: Any) -> None:
        source = LAZY.replace("Platform(", "Late(") + (
            "class Late(Platform):\n    def claims(self):\n        if late: raise OSError\n"
            "        return ()\nlate = []\n"
        )
        add(site, "odd", "plugins:odd", source)
        later = LAZY.replace('"odd"', '"other"').replace(
            "    return", "    import odd_module\n    odd_module.late.append(1)\n    return"
        )
        add(site, "other", "plugins:other", later)
        board = site.load()
        assert states(board)["other"] == "ready"
        assert board.registry("platform").names() == ("odd", "other")


class TestInstallation:
    """What is installed is not what it seems."""

    def test_stale_metadata_that_hides_a_plugin(self, site: Any, rest: Any, tmp_path: Path) -> None:
        add(site, "odd", "plugins:odd", "raise SystemExit", version="2.0")
        stale = tmp_path / "stale" / "odd.egg-info"
        stale.mkdir(parents=True)
        (stale / "PKG-INFO").write_text("Name: Odd\nVersion: 1.0\n")
        (stale / "entry_points.txt").write_text("[pegboard.models]\n")
        path = [str(stale.parent), str(site.folder)]
        board = load_plugins(environ={}, search_path=path, role="engine")
        assert "odd" not in states(board)
        (notice,) = board.notices
        assert notice.startswith("odd is on the path twice: the first (no plugins) is used")
        assert "(plugins:odd 2.0) is not; remove the stale one" in notice
        rest.check(board)

    @pytest.mark.parametrize("name", ["odd_module.py", "odd-1.0.dist-info/METADATA"])
    def test_one_byte_since_the_lock(self, site: Any, rest: Any, tmp_path: Path, name: str) -> None:
        add(site, "odd", "plugins:odd", LAZY + "#0")
        path, candidates = str(tmp_path / "lock"), site.load()._candidates
        make_lock(candidates, [str(site.folder)]).write(path)
        policy = LoadPolicy(lock=path)
        assert states(site.load(policy=policy))["odd"] == "ready"
        rest.forget()
        file = site.folder / name
        file.write_bytes(file.read_bytes()[:-1] + b"1")
        with pytest.raises(PluginError) as caught:
            site.load(policy=policy)
        assert f"odd 1.0: file {name} was changed" in str(caught.value)
        assert "Install what was locked, or look at the differences" in str(caught.value)
        rest.check_process()
        assert not {"alpha_module", "zulu_module"} & sys.modules.keys()


class TestOtherProcess:
    """A child finds something else than its parent."""

    def refusal(self, site: Any, rest: Any, plan: Any) -> str:
        """Of a child; nothing was imported there."""
        rest.forget()
        with pytest.raises(PluginError, match="not those of the process that started it") as caught:
            site.load(plan=plan, role="worker")
        rest.check_process()
        assert "alpha_module" not in sys.modules
        assert str(caught.value).endswith("Give both the same installation and start again")
        return str(caught.value)

    def test_it_is_not_in_the_child(self, site: Any, rest: Any) -> None:
        add(site, "odd", "plugins:odd", LAZY)
        plan = site.load().plan
        shutil.rmtree(site.folder / "odd-1.0.dist-info")
        assert ": plugins:odd of odd 1.0 is not found here" in self.refusal(site, rest, plan)

    def test_it_is_only_in_the_child(self, site: Any, rest: Any) -> None:
        plan = site.load().plan
        add(site, "odd", "plugins:odd", LAZY)
        text = self.refusal(site, rest, plan)
        assert ": plugins:odd of odd 1.0 is here and not in the plan" in text

    def test_it_has_another_version_in_the_child(self, site: Any, rest: Any) -> None:
        add(site, "odd", "plugins:odd", LAZY)
        plan = site.load().plan
        shutil.rmtree(site.folder / "odd-1.0.dist-info")
        add(site, "odd", "plugins:odd", LAZY, version="1.0.1")
        text = self.refusal(site, rest, plan)
        assert ": plugins:odd of odd 1.0 has the version 1.0.1 here" in text


class TestLazyParts:
    """What is imported when an engine needs it."""

    def board(self, site: Any, body: str) -> Any:
        add(site, "odd", "plugins:odd", LAZY)
        (site.folder / "odd_lazy.py").write_text(f"probe = runtime = print\n{body}\n")
        return site.load()

    def load(self, board: Any) -> Any:
        return board.require("platform", "odd", wanted_by="a test").runtime.load()

    @pytest.mark.parametrize(
        ("body", "told"),
        [
            ("import ctypes; ctypes.CDLL('libodd-is-missing.so.7')", "OSError: libodd-is-missing"),
            ("import sys; sys.exit(0)", "SystemExit: 0"),
            ("del runtime", "'odd_lazy' has no attribute 'runtime'"),
            ("del runtime\ndef __getattr__(name): raise OSError(name)", "OSError: "),
            ("def f(): f()\nf()", "RecursionError"),
        ],
    )
    def test_what_cannot_be_imported_is_an_error_with_its_name(
        self, site: Any, rest: Any, body: str, told: str
    ) -> None:
        board = self.board(site, body)
        assert states(board)["odd"] == "ready"
        with pytest.raises(PluginError) as caught:
            self.load(board)
        assert told in str(caught.value) and "odd_lazy" in str(caught.value)
        assert board.require("command", "alpha", wanted_by="a test").app.load()() == "alpha"
        rest.forget()
        rest.check_process()

    def test_the_doctor_finds_a_missing_library(self, site: Any, rest: Any) -> None:
        self.board(site, "import ctypes; ctypes.CDLL('libodd-is-missing.so.7')")
        findings = examine(environ={}, search_path=[str(site.folder)]).findings
        messages = [f.message for f in findings if f.check == "imports"]
        assert any("odd 1.0" in m and "OSError: libodd-is-missing.so.7" in m for m in messages)
        assert not any("alpha" in f.message for f in findings)

    def test_an_interrupt_is_the_users(self, site: Any, rest: Any) -> None:
        board = self.board(site, "raise KeyboardInterrupt")
        with pytest.raises(KeyboardInterrupt):
            self.load(board)

    @pytest.mark.parametrize(
        ("body", "told"),
        [
            (
                "from pegboard.api.platform import Platform\nPlatform.claims = print",
                "pegboard.api.platform.Platform.claims",
            ),
            ("import torch\ntorch.set_default_dtype(torch.float64)", "torch's default dtype"),
            (
                "import sys, types\nsys.modules['pegboard.errors'] = types.ModuleType('x')",
                "module pegboard.errors in sys.modules",
            ),
        ],
    )
    def test_what_it_changes_stops_the_engine_and_is_undone(
        self, site: Any, rest: Any, body: str, told: str
    ) -> None:
        board = self.board(site, body)
        claims, errors = Platform.claims, importlib.import_module("pegboard.errors")
        with (
            pytest.raises(PluginError, match=f"while the engine was built.*{told}"),
            board.watched(),
        ):
            self.load(board)
        assert Platform.claims is claims and sys.modules["pegboard.errors"] is errors
        assert torch.get_default_dtype() == torch.float32
        rest.forget()
        rest.check_process()

    def test_a_reference_that_changes_nothing_is_loaded(self, site: Any, rest: Any) -> None:
        board = self.board(site, "")
        with board.watched():
            assert self.load(board) is print
        assert LazyRef("odd_lazy:probe").load() is print
