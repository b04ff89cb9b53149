"""Plugins of another program, which a plugin of ours runs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from pegboard.errors import PluginError
from pegboard.plugins import LoadPolicy
from pegboard.plugins.discover import discover
from pegboard.plugins.lock import differences, make_lock

ADOPTER = """
import importlib
from pegboard.api.alias import ModelAlias
from pegboard.api.foreign import NotAdoptedError
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"alias": 0}


@hookimpl
def pegboard_adopt(ctx, plugin):
    if plugin.name == "stray":
        raise NotAdoptedError("somebody else runs the plugins of acme")
    module, _, function = plugin.value.partition(":")
    names = getattr(importlib.import_module(module), function)()
    if names is None:
        return [Platform("p", "nowhere:probe", "nowhere:runtime")]
    return [ModelAlias(name, of=f"{plugin.group}.{plugin.distribution}") for name in names]
"""
NAMES = {"guest_module.py": "def names():\n    return ['GuestForCausalLM']\n"}


def add_adopter(site: Any, source: str = ADOPTER, **options: Any) -> None:
    entries = {"plugins:charity": "charity_module", "adopters:acme.plugins": "charity_module"}
    site.add("pegboard-charity", entries, files={"charity_module.py": source}, **options)


def add_guest(site: Any, name: str = "guest", body: str | None = None, **options: Any) -> None:
    files = NAMES if body is None else {"guest_module.py": body}
    entries = {f"acme.plugins:{name}": "guest_module:names"}
    site.add("acme-guest", entries, files=files, version="2.5", **options)


def states(board: Any) -> dict[str, str]:
    return {record.id: record.state for record in board.plugins}


def test_without_an_adopter_the_plugin_of_another_program_is_not_seen(site: Any) -> None:
    add_guest(site)
    assert site.load().plugins == ()


def test_an_adopted_plugin_is_on_the_board_as_its_own_distributions(site: Any) -> None:
    add_adopter(site)
    add_guest(site, "aaa")  # before its adopter in the order of names
    board = site.load()
    record = board.provenance("alias", "hf:GuestForCausalLM")
    assert (record.id, record.distribution, record.version) == ("aaa", "acme-guest", "2.5")
    assert (record.group, record.state) == ("acme.plugins", "ready")
    assert board.registry("alias").get("GuestForCausalLM").of == "acme.plugins.acme-guest"
    assert [p.id for p in board.plan.plugins] == ["charity", "aaa"]


@pytest.mark.parametrize(
    ("allowlist", "state", "reason"),
    [
        ("charity,guest", "ready", ""),
        ("charity,acme-guest", "ready", ""),
        ("charity,acme.plugins:guest", "ready", ""),
        ("charity", "blocked", "leaves it out: add 'guest' to it"),
        ("guest", "blocked", "leaves plugins:charity of pegboard-charity 1.0, which runs it, out"),
        ("", "blocked", "add 'guest' to it"),
    ],
)
def test_the_allowlist_must_admit_both(site: Any, allowlist: str, state: str, reason: str) -> None:
    add_adopter(site)
    add_guest(site)
    board = site.load(allowlist)
    (record,) = [r for r in board.plugins if r.id == "guest"]
    assert record.state == state and reason in record.reason
    assert ("guest_module" in sys.modules) == (state == "ready")
    assert not board.notices


def test_it_fails_alone_and_its_modules_are_forgotten(site: Any) -> None:
    add_adopter(site)
    add_guest(site, body="def names():\n    raise OSError('no disk')\n")
    board = site.load()
    assert states(board) == {"charity": "ready", "guest": "failed"}
    assert "no disk" in board.plugins[0].reason and "guest_module" not in sys.modules
    with pytest.raises(PluginError, match="no disk"):
        site.load(policy=LoadPolicy(strict=True))


def test_what_is_of_a_surface_that_the_adopter_does_not_declare_is_refused(site: Any) -> None:
    add_adopter(site)
    add_guest(site, body="def names():\n    return None\n")
    (guest, _) = site.load().plugins
    assert guest.state == "failed"
    assert "PEGBOARD_API declares (alias), one was a value of type Platform" in guest.reason


def test_one_that_is_left_alone_is_no_failure_and_is_told_of_once(site: Any) -> None:
    add_adopter(site)
    add_guest(site, "stray")
    site.add("acme-other", {"acme.plugins:stray2": "guest_module:names"})
    board = site.load(policy=LoadPolicy(strict=True))
    assert states(board) == {"charity": "ready", "stray": "unused", "stray2": "ready"}
    assert board.notices == ("somebody else runs the plugins of acme",)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (ADOPTER.replace('{"alias": 0}', '{"alias": 99}'), "which runs plugins of this group"),
        (ADOPTER.replace("import importlib", "raise OSError"), "which runs plugins of this group"),
        (ADOPTER.replace("pegboard_adopt", "pegboard_model_aliases"), "no hook 'pegboard_adopt'"),
    ],
    ids=["incompatible", "failed", "without the hook"],
)
def test_it_does_not_load_where_its_adopter_does_not(site: Any, source: str, reason: str) -> None:
    if "pegboard_adopt" not in source:
        source = (
            source[: source.index("@hookimpl")]
            + "@hookimpl\ndef pegboard_model_aliases():\n    return []\n"
        )
    add_adopter(site, source)
    add_guest(site)
    (guest, _) = site.load().plugins
    assert guest.state == "failed" and reason in guest.reason
    assert "guest_module" not in sys.modules


def test_an_adopter_must_be_a_plugin_and_the_only_one_of_its_group(site: Any) -> None:
    site.add("empty-words", {"adopters:other.things": "nothing", "plugins:e": "e_module"})
    assert "which is no plugin of it" in discover([str(site.folder)]).notices[0]
    add_adopter(site)
    site.add("rival", {"adopters:acme.plugins": "rival_module", "plugins:rival": "rival_module"})
    notices = discover([str(site.folder)]).notices
    assert any("the group acme.plugins is adopted by both" in notice for notice in notices)


def test_the_other_program_itself_is_not_among_its_requirements(site: Any) -> None:
    add_adopter(site)
    add_guest(site, requires=("ACME>=0.9; python_version > '3'", "acme-more", "numpy"))
    (guest, _) = discover([str(site.folder)]).candidates
    assert guest.requires == ("acme-more", "numpy")


def test_it_is_locked_like_any_other(site: Any) -> None:
    add_adopter(site)
    add_guest(site)
    path = [str(site.folder)]
    lock = make_lock(discover(path).candidates, path)
    assert {p.distribution for p in lock.plugins} == {"acme-guest", "pegboard-charity"}
    assert not list(differences(lock, discover(path).candidates, path))
    (site.folder / "guest_module.py").write_text("def names():\n    return []\n")
    (found,) = differences(lock, discover(path).candidates, path)
    assert found == "acme-guest 2.5: file guest_module.py was changed"


CHILD = """
import pickle, sys
from pegboard.plugins import build_board
board = build_board(plan=pickle.load(sys.stdin.buffer), role="worker")
pickle.dump(([r.state for r in board.plugins], board.registry("alias").names()), sys.stdout.buffer)
"""


def test_another_process_loads_the_same(site: Any) -> None:
    add_adopter(site)
    add_guest(site)
    environ = {**os.environ, "PYTHONPATH": str(site.folder)}
    child = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=pickle.dumps(site.load().plan),
        stdout=subprocess.PIPE,
        env=environ,
        check=True,
        timeout=60,
    )
    assert pickle.loads(child.stdout) == (["ready", "ready"], ("GuestForCausalLM",))
