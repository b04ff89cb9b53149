"""Plugins that break the rules as they are loaded: each ends as it should, and harms nobody else.

The saboteur is ``odd``, between two sound plugins; what it may not touch is `Rest`.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from textwrap import dedent
from typing import Any, NamedTuple

import pytest

from pegboard.errors import ConfigError, PluginError
from pegboard.plugins import LoadPolicy

HEAD = """
import os, signal, sys, threading, types, warnings
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Platform

PEGBOARD_API = {"command": 0, "ops": 0, "platform": 0}


def platform(name="odd"):
    return Platform(name=name, probe="nowhere:probe", runtime="nowhere:runtime")

"""
HOOK = "@hookimpl\ndef pegboard_platforms():\n    "
SOUND = HOOK + "return [platform()]\n"


class Case(NamedTuple):
    """One kind of sabotage."""

    name: str
    body: str
    """Follows `HEAD`."""
    told: Sequence[str]
    """What the reason says."""


AT_IMPORT = [
    Case("import error", "import no_such_module", ["No module named 'no_such_module'", ":"]),
    Case("error", "raise RuntimeError('boom\\nand more')", ["RuntimeError: boom and more"]),
    Case(
        "mute error",
        "class Mute(Exception):\n    def __str__(self): raise OSError\nraise Mute",
        ["Mute (", "odd_module.py:"],
    ),
    Case(
        "native library",
        "import ctypes; ctypes.CDLL('libodd-is-missing.so.7')",
        ["OSError: libodd-is-missing.so.7"],
    ),
    Case("exit", "sys.exit(0)", ["SystemExit: 0"]),
    Case("own kind", "class Abrupt(BaseException): pass\nraise Abrupt('x')", ["Abrupt: x"]),
    Case("generator exit", "raise GeneratorExit", ["GeneratorExit"]),
    Case("stop iteration", "raise StopIteration(3)", ["StopIteration: 3"]),
    Case(
        "cancelled", "import asyncio; raise asyncio.CancelledError('now')", ["CancelledError: now"]
    ),
    Case("memory", "raise MemoryError", ["MemoryError"]),
    Case("recursion", "def f(): return f()\nf()", ["RecursionError: maximum recursion depth"]),
    Case(
        "deprecation", "warnings.simplefilter('error'); warnings.warn('old')", ["UserWarning: old"]
    ),
    Case("attributes", "def __getattr__(name): raise RuntimeError(name)", ["RuntimeError: "]),
    Case("no hooks", "x = 1", ["has no hooks; mark a function"]),
]

IN_HOOKS = [
    Case("error in a hook", HOOK + "raise KeyError('odd key')", ["KeyError: 'odd key'"]),
    Case("exit in a hook", HOOK + "sys.exit('enough')", ["SystemExit: enough"]),
    Case(
        "half done",
        "@hookimpl\ndef pegboard_commands(ctx):\n"
        "    ctx.metrics.gauge('early', 'Early')\n"
        "    return [Command('early', 'x', 'a:b')]\n" + HOOK + "1 / 0",
        ["ZeroDivisionError"],
    ),
    Case(
        "generator that fails half way",
        HOOK + "yield platform()\n    yield platform('second')\n    raise OSError('third')",
        ["OSError: third"],
    ),
    Case(
        "misspelt hook",
        SOUND.replace("pegboard_platforms", "pegboard_platfroms"),
        ["no hook 'pegboard_platfroms'; the nearest hook is 'pegboard_platforms'"],
    ),
    Case("unmarked hook", SOUND.replace("@hookimpl\n", ""), ["not marked with @hookimpl"]),
    Case("extra argument", SOUND.replace("()", "(ctx, engine)"), ["pegboard_platforms", "engine"]),
    Case("a number", HOOK + "return 1", ["list of descriptors", "a value of type int"]),
    Case("a mapping", HOOK + "return {'odd': platform()}", ["list of descriptors", "dict"]),
    Case("a coroutine's hook", HOOK.replace("def", "async def") + "return []", ["coroutine"]),
    Case("another kind", HOOK + "return [Command('odd', 'x', 'a:b')]", ["Platform descriptors"]),
    Case("the class", HOOK + "return [Platform]", ["Platform descriptors", "type type"]),
    Case("no name", HOOK + "return [platform('')]", ["non-empty strings", "''"]),
    Case(
        "claims that fail later",
        "class Later(Platform):\n    asked = 0\n    def claims(self):\n"
        "        Later.asked += 1\n        if Later.asked > 1: raise OSError('asked again')\n"
        "        return ()\n"
        + HOOK
        + "return [platform(), Later(name='later', probe='a:b', runtime='a:b')]",
        ["OSError: asked again"],
    ),
    Case(
        "undeclared surface",
        "@hookimpl\ndef pegboard_schedulers():\n    return []",
        ["surface 'scheduler', which PEGBOARD_API does not declare"],
    ),
    Case("malformed reference", HOOK + "return [Platform('odd', 'x', 'a:b')]", ["'x' is not of"]),
]

TAKEN = [
    Case(
        "command of the core",
        "@hookimpl\ndef pegboard_commands(): return [Command('run', 'Mine', 'odd:run')]",
        ["command 'run' is registered by both pegboard-core", "odd 1.0"],
    ),
    Case(
        "command, after a change of the environment",
        "os.environ['ODD'] = '1'\n"
        "@hookimpl\ndef pegboard_commands(): return [Command('bench', 'Mine', 'odd:run')]",
        ["command 'bench' is registered by both pegboard-core"],
    ),
    Case("itself", HOOK + "return [platform(), platform()]", ["twice by odd 1.0"]),
    Case(
        "op in another namespace",
        "@hookimpl\ndef pegboard_ops(): return [OpVersion('alpha.rope', 'rope', 'a:b')]",
        ["'odd', a dot and a name", "'alpha.rope'"],
    ),
    Case(
        "op",
        "@hookimpl\ndef pegboard_ops(): return [OpVersion('odd.rope', 'rope', 'a:b')] * 2",
        ["ops 'odd.rope' is registered twice"],
    ),
    Case(
        "metric",
        "@hookimpl\ndef pegboard_platforms(ctx):\n"
        "    ctx.metrics.counter('n', 'Things')\n"
        "    ctx.metrics.gauge('n', 'Things')\n    return []",
        ["metric pegboard_plugin_odd_n", "taken by a counter"],
    ),
    Case(
        "override of a command of the core",
        "PEGBOARD_OVERRIDE = {'command': ['plugins']}\n" + SOUND,
        ["PEGBOARD_OVERRIDE names the command 'plugins'", "cannot be overridden"],
    ),
]

OF_THE_PROCESS = [
    Case(
        "class of the core",
        "from pegboard.api.context import PluginContext\nPluginContext.logger = None\n" + SOUND,
        ["changes pegboard.api.context.PluginContext.logger", "pegboard.api"],
    ),
    Case(
        "function of the core, then an error",
        "import pegboard.plugins.nearest as core\ncore.nearest = print\n" + HOOK + "raise OSError",
        ["OSError"],
    ),
    Case(
        "class of the core, in a hook",
        HOOK + "Platform.more = lambda self: 1\n    return [platform()]",
        ["changes pegboard.api.platform.Platform.more"],
    ),
    Case(
        "reload of the core",
        "import importlib\nimport pegboard.errors as core\nimportlib.reload(core)\n" + SOUND,
        ["pegboard.errors.PluginError", "which is undone"],
    ),
    Case(
        "second import of the core",
        "del sys.modules['pegboard.errors']\nimport pegboard.errors\n" + SOUND,
        ["module pegboard.errors in sys.modules"],
    ),
    Case(
        "module of the core",
        "sys.modules['pegboard.plugins'] = types.ModuleType('pegboard.plugins')\n" + SOUND,
        ["module pegboard.plugins in sys.modules"],
    ),
    Case(
        "module of Python",
        "import json\nsys.modules['json'] = types.ModuleType('json')\n" + SOUND,
        ["module json in sys.modules"],
    ),
    Case(
        "module of another plugin",
        "sys.modules['alpha_module'] = sys\n" + SOUND,
        ["module alpha_module in sys.modules"],
    ),
    Case(
        "module taken away", "del sys.modules['alpha_module']\n" + SOUND, ["module alpha_module in"]
    ),
    Case(
        "default dtype",
        "import torch\ntorch.set_default_dtype(torch.bfloat16)\n" + SOUND,
        ["torch's default dtype (now torch.bfloat16)"],
    ),
    Case(
        "signal handler",
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n" + SOUND,
        ["the handler of SIGINT, the handler of SIGTERM"],
    ),
    Case(
        "signal handler, then an error",
        "signal.signal(signal.SIGUSR1, print)\nraise OSError('late')",
        ["OSError: late"],
    ),
    Case("warnings as errors", "warnings.simplefilter('error')\n" + SOUND, ["filters of warnings"]),
    Case(
        "environment, then an error",
        "os.environ['ODD'] = '1'\nos.environ['PATH'] = ''\ndel os.environ['HOME']\nraise OSError",
        ["OSError"],
    ),
]

FAILING = [*AT_IMPORT, *IN_HOOKS, *TAKEN, *OF_THE_PROCESS]


def record_of(board: Any, name: str = "odd") -> Any:
    (record,) = (r for r in board.plugins if r.id == name)
    return record


@pytest.mark.parametrize("case", FAILING, ids=lambda case: case.name.replace(" ", "-"))
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
def test_it_is_quarantined_and_the_rest_is_unharmed(site: Any, rest: Any, case: Case) -> None:
    site.add_source(HEAD + dedent(case.body))
    board = site.load()
    record = record_of(board)
    assert (record.state, record.registered) == ("failed", ())
    for text in case.told:
        assert text in record.reason
    assert "\n" not in record.reason
    (notice,) = board.notices
    assert notice.startswith("plugin plugins:odd of odd 1.0 is failed: " + record.reason)
    assert "leave it out with VLLM_PLUGINS" in notice
    rest.check(board)


@pytest.mark.parametrize("case", [AT_IMPORT[0], IN_HOOKS[2], TAKEN[0], OF_THE_PROCESS[0]])
def test_in_strict_mode_it_is_one_error_that_says_what_to_do(
    site: Any, rest: Any, case: Case
) -> None:
    site.add_source(HEAD + dedent(case.body))
    start = r"^strict mode refuses to start: plugins:odd of odd 1\.0 is failed: .*VLLM_PLUGINS$"
    with pytest.raises(PluginError, match=start) as caught:
        site.load(policy=LoadPolicy(strict=True))
    assert case.told[0] in str(caught.value)
    rest.forget()
    rest.check_process()


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
    from pegboard.plugins import loading

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
    assert "this core runs 1 and 2: upgrade odd" in record.reason
    rest.check(board)


def test_a_plugin_that_was_made_for_another_core_is_refused_before_import(
    site: Any, rest: Any
) -> None:
    site.add_source(HEAD + "raise SystemExit", requires=["pegboard-core==0.0.1"])
    board = site.load()
    record = record_of(board)
    assert record.state == "incompatible"
    assert "made for pegboard-core 0.0.1 exactly" in record.reason
    assert "install the odd that belongs to it" in record.reason
    rest.check(board)


def test_an_interrupt_while_it_is_imported_is_the_users(site: Any, rest: Any) -> None:
    site.add_source(HEAD + "os.environ['ODD'] = '1'\nPlatform.odd = print\nraise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        site.load()
    rest.forget()
    rest.check_process()


class TestTolerated:
    """What is noted and does not stop the plugin."""

    def load(self, site: Any, body: str) -> Any:
        site.add_source(HEAD + dedent(body) + "\n" + SOUND)
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
        assert threading.main_thread().is_alive()

    def test_new_filters_of_warnings(self, site: Any) -> None:
        with warnings.catch_warnings():
            site.add_source(HEAD + "warnings.simplefilter('ignore', ImportWarning)\n" + SOUND)
            assert record_of(site.load()).state == "ready"
            assert warnings.filters[0][:3:2] == ("ignore", ImportWarning)


def test_unsafe_plugins_may_change_the_process(site: Any, rest: Any) -> None:
    site.add_source(HEAD + "sys.modules['alpha_module'] = sys\n" + SOUND)
    board = site.load(policy=LoadPolicy(unsafe=True))
    record = record_of(board)
    assert record.state == "ready"
    assert "module alpha_module in sys.modules, which unsafe_plugins allows" in record.notes[-1]
    assert sys.modules.pop("alpha_module") is sys


class TestSettings:
    """A value of the wrong type is the operator's mistake, a class that is none the plugin's."""

    SOURCE = (
        HEAD
        + dedent("""
    import attrs

    @hookimpl
    def pegboard_settings():
        return attrs.make_class("Settings", {"depth": attrs.field(type=int, default=1)})

    """)
        + SOUND
    )

    @pytest.mark.parametrize(
        ("given", "told"),
        [
            ({"odd": {"depth": "deep"}}, r"plugin_config\.odd: depth='deep' .*an integer"),
            ({"odd": {"depht": 3}}, r"plugin_config\.odd.*'depht'.*depth"),
            ({"old": {"depth": 3}}, r"plugin_config.*'old'.*odd"),
        ],
    )
    def test_a_wrong_value(self, site: Any, rest: Any, given: Any, told: str) -> None:
        site.add_source(self.SOURCE)
        with pytest.raises(ConfigError, match=told):
            site.load(policy=LoadPolicy(plugin_config=given))
        rest.forget()
        rest.check_process()

    def test_a_class_that_is_none(self, site: Any, rest: Any) -> None:
        source = self.SOURCE.replace("attrs.make_class(", "dict or (")
        site.add_source(source)
        board = site.load()
        assert "must return an attrs class" in record_of(board).reason
        rest.check(board)


def test_the_log_has_one_line_for_each(
    site: Any, rest: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from pegboard.plugins import load_plugins

    logging.getLogger("pegboard").propagate = True
    site.add_source(HEAD + "raise OSError('no luck')")
    load_plugins(environ={}, search_path=[str(site.folder)])
    (line,) = caplog.messages
    assert "plugins:odd of odd 1.0" in line and "no luck" in line and "VLLM_PLUGINS" in line
