"""Loading: what a plugin registers, how it fails, and that a failure leaves nothing behind."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from textwrap import dedent
from typing import Any

import pytest

from pegboard.api.command import Command
from pegboard.errors import DuplicateError, PluginError
from pegboard.plugins import LoadPolicy, load_plugins

HEAD = """
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0, "command": 0}


def platform(name):
    return Platform(name=name, probe="nowhere:probe", runtime="nowhere:runtime")

"""


def plugin_names(board: Any, surface: str) -> list[str]:
    """Names in a registry, without those of the core."""
    registry = board.registry(surface)
    return [n for n in registry.names() if registry.provenance(n).entry_point != "core"]


def test_a_plugin_registers_into_several_surfaces(site: Any) -> None:
    source = """
    @hookimpl
    def pegboard_platforms(ctx):
        ctx.logger.debug("asked")
        yield platform(f"{ctx.plugin_id}-{ctx.distribution}-{ctx.version}-{'+'.join(ctx.roles)}")

    @hookimpl
    def pegboard_commands():
        return (Command("odd", "Be odd", "odd_module:run"),)
    """
    site.add_source(HEAD + dedent(source))
    board = site.load(role="engine")
    (record,) = board.plugins
    assert record.state == "ready" and not record.reason
    assert plugin_names(board, "platform") == ["odd-odd-1.0-engine"]
    assert plugin_names(board, "command") == ["odd"]
    assert [(r.surface, r.name) for r in record.registered] == [
        ("command", "odd"),
        ("platform", "odd-odd-1.0-engine"),
    ]
    assert record.surfaces == ("command", "platform")
    assert record.import_seconds > 0
    assert board.provenance("command", "odd") is record
    assert board.provenance("command", "plugins") is board.core


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("class Abrupt(BaseException): pass\nraise Abrupt", "Abrupt"),
        (
            "@hookimpl\ndef pegboard_platform():\n    return []",
            "nearest hook is 'pegboard_platforms'",
        ),
        ("@hookimpl\ndef zzz():\n    return []", "there is no hook 'zzz'; hooks are"),
        ("@hookimpl\ndef pegboard_platforms(ctx, extra):\n    return []", "extra"),
        ("def pegboard_platforms():\n    return []", "not marked with @hookimpl"),
        ("pass", "has no hooks"),
        ("@hookimpl\ndef pegboard_platforms():\n    return 1", "a value of type int"),
        ("@hookimpl\ndef pegboard_platforms():\n    return 'cpu'", "a value of type str"),
        (
            "@hookimpl\ndef pegboard_platforms():\n    return [object()]",
            "one was a value of type obj",
        ),
        ("@hookimpl\ndef pegboard_commands():\n    return [platform('x')]", "Command descriptors"),
        ("@hookimpl\ndef pegboard_platforms():\n    return [platform('')]", "non-empty strings"),
        ("@hookimpl\ndef pegboard_platforms():\n    return [platform(3)]", "non-empty strings"),
        (
            "@hookimpl\ndef pegboard_platforms():\n    yield platform('x')\n    1 / 0",
            "ZeroDivisionError",
        ),
        (
            "@hookimpl\ndef pegboard_platforms():\n    return [platform('x')] * 2",
            "twice by odd 1.0",
        ),
        (
            "@hookimpl\ndef pegboard_ops():\n    return []",
            "'ops', which PEGBOARD_API does not declare",
        ),
        ("Platform(name='x', probe='not a reference', runtime='a:b')", "'not a reference'"),
    ],
)
def test_a_failing_plugin_is_quarantined_and_shown(site: Any, body: str, reason: str) -> None:
    site.add_source(f"{HEAD}\n{body}\n")
    site.add_platform("sound", "platforms:sound")
    board = site.load()
    assert [(r.id, r.state) for r in board.plugins] == [("sound", "ready"), ("odd", "failed")]
    assert reason in board.plugins[1].reason
    assert "\n" not in board.plugins[1].reason
    assert plugin_names(board, "platform") == ["sound"]
    assert any(reason in notice and "odd" in notice for notice in board.notices)
    with pytest.raises(PluginError, match=r"strict mode refuses to start: plugins:odd of odd 1\.0"):
        site.load(policy=LoadPolicy(strict=True))


def test_a_plugin_that_returns_nothing_is_told_so(site: Any) -> None:
    site.add_source(HEAD + "@hookimpl\ndef pegboard_platforms():\n    return None\n")
    (record,) = site.load().plugins
    assert record.state == "failed" and "returned None" in record.reason


def test_a_plugin_that_fails_half_way_leaves_nothing_behind(site: Any) -> None:
    source = """
    import odd_helper.inner

    @hookimpl
    def pegboard_commands():
        return [Command("early", "Registered before the failure", "odd_module:run")]

    @hookimpl
    def pegboard_platforms():
        raise ValueError("late")
    """
    files = {
        "odd_pkg/__init__.py": HEAD + dedent(source).replace("odd_helper", "odd_pkg"),
        "odd_pkg/inner.py": "",
    }
    site.add("odd", {"plugins:odd": "odd_pkg"}, files=files)
    board = site.load()
    assert board.plugins[0].state == "failed" and "late" in board.plugins[0].reason
    assert board.plugins[0].registered == ()
    assert "early" not in board.registry("command")
    assert not [name for name in sys.modules if name.startswith("odd_pkg")]


def test_a_keyboard_interrupt_is_not_a_failure_of_the_plugin(site: Any) -> None:
    site.add_source(f"{HEAD}\nraise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        site.load()


def test_an_optional_hook_of_a_later_release_is_no_mistake(site: Any) -> None:
    source = "@hookimpl(optionalhook=True)\ndef pegboard_of_tomorrow():\n    return []\n"
    site.add_source(HEAD + source + "@hookimpl\ndef pegboard_platforms():\n    return []\n")
    assert site.load().plugins[0].state == "ready"


def test_an_entry_point_must_name_a_module(site: Any) -> None:
    site.add("odd", {"plugins:odd": "odd_module:thing"}, files={"odd_module.py": HEAD})
    site.add("gone", {"plugins:gone": "module_that_is_gone"})
    reasons = {r.id: r.reason for r in site.load().plugins}
    assert "must name a module, it is 'odd_module:thing'" in reasons["odd"]
    assert "'module_that_is_gone' is not found" in reasons["gone"]


def test_one_plugin_name_for_two_distributions_is_refused_for_both(site: Any) -> None:
    first = site.add_platform("first-dist", "platforms:same")
    second = site.add_platform("second-dist", "models:same")
    board = site.load()
    assert [r.state for r in board.plugins] == ["failed", "failed"]
    for record in board.plugins:
        assert "first-dist" in record.reason and "second-dist" in record.reason
    assert first not in sys.modules and second not in sys.modules
    assert [r.state for r in site.load("platforms:same").plugins] == ["blocked", "ready"]


def test_one_descriptor_name_for_two_distributions_is_refused_with_both_named(site: Any) -> None:
    for distribution in ("first-dist", "second-dist"):
        source = HEAD + "@hookimpl\ndef pegboard_platforms():\n    return [platform('same')]\n"
        module = distribution.replace("-", "_")
        site.add(distribution, {f"plugins:{distribution}": module}, files={f"{module}.py": source})
    board = site.load()
    assert [r.state for r in board.plugins] == ["ready", "failed"]
    assert "first-dist" in board.plugins[1].reason and "second-dist" in board.plugins[1].reason
    with pytest.raises(DuplicateError, match=r"'same' .*first-dist.*second-dist.*by --platform"):
        board.require("platform", "same", wanted_by="--platform")


def test_a_plugin_may_not_take_a_command_of_the_core(site: Any) -> None:
    body = "@hookimpl\ndef pegboard_commands():\n    return [Command('run', 'Mine', 'odd:run')]\n"
    site.add_source(HEAD + body)
    board = site.load()
    assert board.plugins[0].state == "failed"
    assert "pegboard-core" in board.plugins[0].reason and "odd 1.0" in board.plugins[0].reason


def test_order_does_not_depend_on_the_path(site: Any) -> None:
    for name in ("zeta", "alpha", "mid"):
        site.add_platform(name, f"platforms:{name}")
    site.add_platform("omega", "attention:omega")
    board = site.load()
    assert [r.id for r in board.plugins] == ["omega", "alpha", "mid", "zeta"]
    assert [p.name for p in board.registry("platform")] == ["omega", "alpha", "mid", "zeta"]


def test_with_surfaces_given_the_other_plugins_stay_unimported(site: Any) -> None:
    module = site.add_platform("acme", "platforms:acme")
    source = HEAD.replace('"platform": 0, ', "") + "@hookimpl\ndef pegboard_commands(): return []\n"
    site.add_source(source)
    board = site.load(surfaces=("command",))
    assert [r.id for r in board.plugins] == ["odd"]
    assert module not in sys.modules


def test_extra_descriptors_are_registered_as_the_cores_own(site: Any) -> None:
    mine = Command("mine", "My own", "somewhere:run")
    board = site.load(extra=[("command", mine)])
    assert board.require("command", "mine", wanted_by="a test") is mine
    assert board.provenance("command", "mine").distribution == "pegboard-core"


def test_importing_torch_at_start_up_is_noted(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    fake = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n"
    site.add_source(fake + HEAD + "@hookimpl\ndef pegboard_platforms():\n    return []\n")
    (record,) = site.load().plugins
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert record.state == "ready" and "imports torch at start-up" in record.notes[0]


def test_the_front_end_logs_each_notice_and_other_processes_do_not(
    site: Any, caplog: pytest.LogCaptureFixture
) -> None:
    site.add_source("raise RuntimeError('boom')\nPEGBOARD_API = {'model': 0}\n")
    logging.getLogger("pegboard").propagate = True
    load: Callable[..., Any] = load_plugins
    load(environ={}, search_path=[str(site.folder)], role="worker")
    assert not caplog.records
    load(environ={}, search_path=[str(site.folder)])
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "boom" in caplog.text


def test_two_boards_share_nothing(site: Any) -> None:
    site.add_platform("acme", "platforms:acme")
    full, empty = site.load(), site.load("")
    assert "acme" in full.registry("platform")
    assert "acme" not in empty.registry("platform")


def test_a_stale_copy_of_a_distribution_is_reported(site: Any, tmp_path: Any) -> None:
    site.add_platform("acme", "platforms:acme", version="2.0")
    stale = tmp_path / "stale" / "acme.egg-info"
    stale.mkdir(parents=True)
    (stale / "PKG-INFO").write_text("Name: Acme\nVersion: 1.0\n")
    (stale / "entry_points.txt").write_text("[pegboard.models]\nold = old_module\n")
    board = load_plugins(
        environ={}, search_path=[str(site.folder), str(stale.parent)], role="engine"
    )
    assert [(r.id, r.version) for r in board.plugins] == [("acme", "2.0")]
    assert len(board.notices) == 1 and "acme is on the path twice" in board.notices[0]


def test_broken_metadata_spoils_only_its_own_distribution(site: Any) -> None:
    site.add_platform("acme", "platforms:acme")
    for name, entry_points in {
        "nameless": "[pegboard.models]\na = b\n",
        "binary": "\udcff",
    }.items():
        info = site.folder / f"{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\n")
        (info / "entry_points.txt").write_bytes(entry_points.encode(errors="surrogateescape"))
    board = site.load()
    assert [r.id for r in board.plugins] == ["acme"]
    assert len(board.notices) == 1
    assert "nameless-1.dist-info" in board.notices[0] and "no Name" in board.notices[0]
