"""Sabotage as an operator meets it: exit codes, what is said where, and that the rest works.

Fresh processes see two sound plugins, a platform and a model family, and the saboteur ``odd``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pegboard
from pegboard.testing.checkpoints import write_tiny_model

SOURCE = str(Path(pegboard.__file__).parents[1])
MAIN = "import sys; from pegboard.cli import main; sys.exit(main())"

SOUND = """
from pegboard.api.hooks import hookimpl
from pegboard.testing.families import TINY_FAMILY
from pegboard.testing.null_platform import NULL_PLATFORM

PEGBOARD_API = {"model": 0, "platform": 0}


@hookimpl
def HOOK():
    return [THING]
"""
ODD = """
import os, sys
import attrs
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"command": 0, "model": 0, "platform": 0}
PROBE = "pegboard.testing.null_platform:probe"


@hookimpl
def pegboard_settings():
    return attrs.make_class("Settings", {"depth": attrs.field(type=int, default=1)})


@hookimpl
def pegboard_platforms():
    return [Platform("NAME", PROBE, "odd_lazy:Runtime")]


@hookimpl
def pegboard_commands():
    return [Command("odd", "Be odd", "odd_lazy:act")]

"""
LAZY = """
from pegboard.testing.null_platform import NullRuntime as Runtime


def act():
    print("acted")
"""


class Shell:
    """Runs `pegboard` with what a site holds; by default all three plugins are admitted."""

    def __init__(self, site: Any, folder: Path) -> None:
        self._site, self._folder = site, folder
        things = {"base": ("pegboard_platforms", "NULL_PLATFORM")}
        things["family"] = ("pegboard_model_families", "TINY_FAMILY")
        for name, (hook, thing) in things.items():
            source = SOUND.replace("HOOK", hook).replace("THING", thing)
            site.add(name, {f"plugins:{name}": f"{name}_mod"}, files={f"{name}_mod.py": source})

    def add_odd(self, body: str = "", lazy: str = "", platform: str = "odd") -> None:
        source = ODD.replace("NAME", platform)
        files = {"odd_mod.py": f"{source}\n{body}\n", "odd_lazy.py": f"{LAZY}\n{lazy}\n"}
        self._site.add("odd", {"plugins:odd": "odd_mod"}, files=files)

    def __call__(
        self, *words: str, admit: str = "torch,base,family,odd"
    ) -> subprocess.CompletedProcess[str]:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PEGBOARD")}
        variables["VLLM_PLUGINS"] = admit
        variables["PYTHONPATH"] = os.pathsep.join([SOURCE, str(self._site.folder)])
        return subprocess.run(
            [sys.executable, "-c", MAIN, *words],
            capture_output=True,
            text=True,
            env=variables,
            cwd=self._folder,
            check=False,
        )

    def answer(self, *words: str, **options: str) -> subprocess.CompletedProcess[str]:
        """Of a short run with the tiny model."""
        if not (self._folder / "model").exists():
            write_tiny_model(self._folder / "model")
        usual = ("--raw", "--max-tokens", "3", "--temperature", "0", "--max-model-len", "64")
        return self("run", "model", "abc", *usual, *words, **options)


@pytest.fixture
def shell(site: Any, tmp_path: Path) -> Shell:
    return Shell(site, tmp_path)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one error that it ended with; nothing was said on standard output."""
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    (line,) = (x for x in done.stderr.splitlines() if x.startswith("pegboard: error: "))
    return line.removeprefix("pegboard: error: ")


class TestList:
    """`pegboard plugins list` always works: it is where one looks."""

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("print('noise')\nsys.exit(3)", "SystemExit: 3"),
            ("print('noise')\nraise OSError('no luck')", "OSError: no luck"),
            ("Command.more = print", "changes pegboard.api.command.Command.more"),
        ],
    )
    def test_a_saboteur_is_a_row(self, shell: Shell, body: str, reason: str) -> None:
        shell.add_odd(body)
        done = shell("plugins", "list", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        content = json.loads(done.stdout)
        rows = {row["id"]: row for row in content["plugins"] if row["state"] != "blocked"}
        odd = rows.pop("odd")
        assert odd["state"] == "failed" and reason in odd["reason"]
        assert {row["state"] for row in rows.values()} == {"ready"}
        (notice,) = (text for text in content["notices"] if "odd" in text)
        assert "plugins:odd of odd 1.0 is failed" in notice and "VLLM_PLUGINS" in notice

    def test_the_table_says_why(self, shell: Shell) -> None:
        shell.add_odd("raise OSError('no luck')")
        done = shell("plugins", "list")
        assert done.returncode == 0
        assert "* plugins:odd is failed: OSError: no luck (" in done.stdout

    def test_an_interrupt_ends_it_with_its_customary_code(self, shell: Shell) -> None:
        shell.add_odd("raise KeyboardInterrupt")
        done = shell("plugins", "list")
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


class TestCommands:
    """Commands of plugins."""

    def test_help_names_what_did_not_load(self, shell: Shell) -> None:
        shell.add_odd("sys.exit()")
        done = shell("--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert "Plugins that did not load: odd; see 'pegboard plugins list'" in done.stdout

    def test_a_command_that_ends_the_process_while_it_is_imported_has_failed(
        self, shell: Shell
    ) -> None:
        shell.add_odd(lazy="import sys; sys.exit(0)")
        done = shell("odd")
        assert done.returncode == 1
        assert error_of(done) == "cannot import 'odd_lazy:act': SystemExit: 0"

    def test_a_command_of_a_failed_plugin_is_not_there(self, shell: Shell) -> None:
        shell.add_odd("raise OSError('no luck')")
        done = shell("odd")
        assert done.returncode == 2
        assert "there is no command 'odd'" in error_of(
            done
        ) and "odd 1.0 might provide it; it is installed, but it is failed: OSError" in error_of(
            done
        )


class TestRun:
    """`pegboard run`: what it needs is required, all else optional."""

    def test_an_optional_plugin_that_fails_is_told_and_the_answer_comes(self, shell: Shell) -> None:
        shell.add_odd("print('noise')\nraise OSError('no luck')")
        done = shell.answer()
        assert done.returncode == 0, done.stderr
        (told,) = (line for line in done.stderr.splitlines() if "no luck" in line)
        assert "plugins:odd of odd 1.0 is failed" in told and "VLLM_PLUGINS" in told
        assert done.stdout.strip() and "noise" not in done.stdout
        assert "3 output tokens" in done.stderr

    def test_a_required_plugin_that_fails_is_one_error(self, shell: Shell) -> None:
        shell.add_odd("raise OSError('no luck')")
        done = shell.answer(admit="torch,base,odd")
        assert done.returncode == 1
        error = error_of(done)
        assert "no loaded plugin provides model family 'hf:PegboardTiny'" in error
        assert "odd 1.0 might provide it" in error and "failed: OSError: no luck" in error
        assert "VLLM_PLUGINS='torch,base,odd' leaves it out: add 'testkit' to it" in error

    def test_in_strict_mode_every_failure_is_an_error(self, shell: Shell) -> None:
        shell.add_odd("raise OSError('no luck')")
        done = shell.answer("--strict-plugins")
        assert done.returncode == 1
        error = error_of(done)
        assert error.startswith("strict mode refuses to start: plugins:odd of odd 1.0 is failed")
        assert "no luck" in error and "leave it out with VLLM_PLUGINS" in error

    def test_a_setting_of_the_wrong_type_is_bad_input(self, shell: Shell) -> None:
        shell.add_odd()
        done = shell.answer("--plugin-config", "odd.depth=deep")
        assert done.returncode == 2
        assert "plugin_config.odd: depth='deep' is not allowed: an integer" in error_of(done)

    def test_one_byte_since_the_lock_is_refused(self, shell: Shell, site: Any) -> None:
        shell.add_odd("#0")
        assert shell("plugins", "lock", admit="base,family,odd").returncode == 0
        lazy = site.folder / "odd_lazy.py"
        lazy.write_text(lazy.read_text()[:-1] + " ")
        verified = shell("plugins", "verify", admit="base,family,odd")
        assert verified.returncode == 1
        assert "odd 1.0: file odd_lazy.py was changed" in verified.stdout
        done = shell.answer("--plugins-lock", "pegboard-plugins.lock", admit="base,family,odd")
        assert done.returncode == 1
        assert "odd 1.0: file odd_lazy.py was changed. Install what was locked" in error_of(done)

    @pytest.mark.parametrize(
        ("lazy", "told"),
        [
            ("import sys; sys.exit(0)", "cannot import 'odd_lazy:Runtime': SystemExit: 0"),
            (
                "from pegboard.kv import KVManager\nKVManager.free = act",
                "code of plugin plugins:odd of odd 1.0 changes pegboard.kv.manager.KVManager.free",
            ),
        ],
    )
    def test_a_required_part_that_fails_late_is_one_error(
        self, shell: Shell, lazy: str, told: str
    ) -> None:
        shell.add_odd(lazy=lazy, platform="null")
        done = shell.answer(admit="torch,family,odd")
        assert done.returncode == 1
        assert told in error_of(done)
