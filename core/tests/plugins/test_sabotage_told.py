"""Saboteurs that are refused before import, are only noted, or come by the operator's settings."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from textwrap import dedent
from typing import Any

import pytest

from pegboard.errors import ConfigError
from pegboard.plugins import LoadPolicy, load_plugins, loading

SOUND = "@hookimpl\ndef pegboard_platforms():\n    return [platform()]\n"


def record_of(board: Any) -> Any:
    (record,) = (r for r in board.plugins if r.id == "odd")
    return record


@pytest.mark.parametrize(
    ("source", "state", "told"),
    [
        ("PEGBOARD_API = {'platform': 9}", "incompatible", "upgrade pegboard-core"),
        ("PEGBOARD_API = dict(platform=0)", "incompatible", "must be a literal such as"),
        ("levels = 1", "incompatible", "add a line such as PEGBOARD_API"),
        ("PEGBOARD_API = {'platfrom': 0}", "incompatible", "nearest: 'platform'"),
        ("PEGBOARD_API = {'platform': 0", "failed", "cannot be read"),
        ("PEGBOARD_API = {'platform': 0}\nPEGBOARD_ORDER = ['alpha']", "failed", "PEGBOARD_ORDER"),
        ("PEGBOARD_API = {'platform': 0}\nPEGBOARD_PROCESSES = {'gpu'}", "failed", "_PROCESSES"),
    ],
)
def test_a_bad_declaration_is_refused_before_import(
    site: Any, rest: Any, source: str, state: str, told: str
) -> None:
    site.add_source(f"{source}\nprint('imported')\nraise SystemExit\n")
    board = site.load()
    record = record_of(board)
    assert record.state == state and told in record.reason
    assert board.notices[0].startswith(f"plugin plugins:odd of odd 1.0 is {state}: ")
    rest.check(board)


def test_an_api_level_that_is_too_old_is_refused_before_import(site: Any, rest: Any) -> None:
    def check_levels(candidate: Any, declared: Any, version: str) -> tuple[str, ...]:
        levels = {"command": 1, "platform": 2}
        return usual(candidate, declared, version, levels)

    usual = loading.check_levels
    site.add_source("PEGBOARD_API = {'platform': 0}\nraise SystemExit\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "check_levels", check_levels)
        board = site.load()
    record = record_of(board)
    assert record.state == "incompatible"
    assert "this core runs levels 1 and 2: upgrade odd" in record.reason
    rest.check(board)


def test_a_plugin_that_was_made_for_another_core_is_refused_before_import(
    site: Any, rest: Any
) -> None:
    site.add_saboteur("raise SystemExit", requires=["pegboard-core==0.0.1"])
    board = site.load()
    record = record_of(board)
    assert record.state == "incompatible"
    assert "made for pegboard-core 0.0.1 exactly" in record.reason
    assert "install the odd that belongs to it" in record.reason
    rest.check(board)


def test_an_interrupt_while_it_is_imported_is_the_users(site: Any, rest: Any) -> None:
    site.add_saboteur("os.environ['ODD'] = '1'\nPlatform.odd = print\nraise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.load()
    rest.forget()
    rest.check_process()


class TestTolerated:
    """What is noted and does not stop the plugin."""

    def load(self, site: Any, body: str) -> Any:
        site.add_saboteur(f"{dedent(body)}\n{SOUND}")
        board = site.load()
        record = record_of(board)
        assert record.state == "ready", record.reason
        assert board.registry("platform").names() == ("odd",)
        assert f"plugin {record}: {record.notes[0]}" in board.notices
        return record

    def test_printing(self, site: Any, rest: Any) -> None:
        body = "print('hello'); sys.stdout.write('more'); sys.stdout.close(); print('again')"
        record = self.load(site, body)
        (note,) = record.notes
        assert note.startswith("it prints at start-up, which is left out: 'hello\\nmoreagain")
        rest.forget()
        rest.check_process()

    def test_sleeping(self, site: Any, rest: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pegboard.plugins.conduct._SLOW", 0.05)
            record = self.load(site, "import time; time.sleep(0.06)")
        assert record.notes == ("its import and hooks took 0.1 s",)
        rest.forget()
        rest.check_process()

    def test_environment_variables_are_named_without_their_values(
        self, site: Any, rest: Any
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("ODD_A", "ODD_B"):
                patch.setenv(name, "old")
            record = self.load(site, "os.environ['ODD_B'] = 'secret'; del os.environ['ODD_A']")
            assert os.environ["ODD_B"] == "secret" and "ODD_A" not in os.environ
        assert record.notes == ("it changes environment variables at start-up: ODD_A, ODD_B",)
        rest.forget()
        rest.check_process()

    def test_threads(self, site: Any, rest: Any) -> None:
        body = """
        end = threading.Event()
        threading.Thread(target=end.wait, name="odd-thread", daemon=True).start()
        """
        record = self.load(site, body)
        (note,) = record.notes
        assert "it starts threads at start-up: odd-thread" in note
        sys.modules["odd_module"].end.set()
        rest.forget()
        rest.check_process()

    def test_new_filters_of_warnings(self, site: Any) -> None:
        with warnings.catch_warnings():
            site.add_saboteur("warnings.simplefilter('ignore', ImportWarning)\n" + SOUND)
            assert record_of(site.load()).state == "ready"
            assert warnings.filters[0][:3:2] == ("ignore", ImportWarning)


def test_unsafe_plugins_may_change_the_process(site: Any, rest: Any) -> None:
    site.add_saboteur("sys.modules['alpha_module'] = sys\n" + SOUND)
    board = site.load(policy=LoadPolicy(unsafe=True))
    record = record_of(board)
    assert record.state == "ready"
    assert "module alpha_module in sys.modules, which unsafe_plugins allows" in record.notes[-1]
    assert sys.modules.pop("alpha_module") is sys


class TestSettings:
    """A value of the wrong type is the operator's mistake, a class that is none the plugin's."""

    SOURCE = f"""
import attrs

@hookimpl
def pegboard_settings():
    return attrs.make_class("Settings", dict(depth=attrs.field(type=int, default=1)))

{SOUND}
"""

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"odd": {"depth": "deep"}}, r"plugin_config\.odd: depth='deep' .*an integer"),
            ({"odd": {"depht": 3}}, r"plugin_config\.odd.*'depht'.*depth"),
            ({"old": {"depth": 3}}, r"plugin_config.*'old'.*odd"),
        ],
    )
    def test_a_wrong_value(self, site: Any, rest: Any, given: Any, told: str) -> None:
        site.add_saboteur(self.SOURCE)
        with pytest.raises(ConfigError, match=told):
            site.load(policy=LoadPolicy(plugin_config=given))
        rest.forget()
        rest.check_process()

    def test_a_class_that_is_none(self, site: Any, rest: Any) -> None:
        site.add_saboteur(self.SOURCE.replace("attrs.make_class(", "dict or ("))
        board = site.load()
        assert "must return an attrs class" in record_of(board).reason
        rest.check(board)


@pytest.mark.usefixtures("rest")
def test_the_log_has_one_line_for_it(
    site: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("pegboard"), "propagate", True)
    site.add_saboteur("raise OSError('no luck')")
    load_plugins(environ={}, search_path=[str(site.folder)])
    (line,) = caplog.messages
    assert "plugins:odd of odd 1.0" in line and "no luck" in line and "VLLM_PLUGINS" in line
