"""``pegboard plugins list`` in a fresh process, with made-up distributions in sight."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import pegboard
from pegboard.__about__ import __version__

SOURCE = str(Path(pegboard.__file__).parents[1])
HEAVY = {"torch", "triton", "numpy", "typer", "rich", "structlog"}

COMMAND = """
import sys
from pegboard.cli import main
code = main()
print("LOADED", *{name.partition(".")[0] for name in sys.modules}, file=sys.stderr)
sys.exit(code)
"""

GOOD = """
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"command": 0}


@hookimpl
def pegboard_commands():
    return [Command("greet", "Say hello", "zz_good:greet")]


def greet(name: str):
    print("hello", name)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two distributions: one with a command, one that cannot be imported."""
    _write(tmp_path, "zz-good", "zz_good", GOOD)
    _write(
        tmp_path, "zz-bad", "zz_bad", "PEGBOARD_API = {'command': 0}\nraise OSError('no luck')\n"
    )
    return tmp_path


def _write(folder: Path, distribution: str, module: str, source: str) -> None:
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    pin = f"Requires-Dist: pegboard-core=={__version__}"
    (info / "METADATA").write_text(f"Name: {distribution}\nVersion: 1.0\n{pin}\n")
    (info / "entry_points.txt").write_text(f"[pegboard.plugins]\n{distribution} = {module}\n")
    (folder / f"{module}.py").write_text(source)


def pegboard_command(
    *words: str, path: Path, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k != "VLLM_PLUGINS"}
    variables |= {"PYTHONPATH": os.pathsep.join([SOURCE, str(path)]), **(environ or {})}
    command = [sys.executable, "-c", COMMAND, *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False)


def loaded(done: subprocess.CompletedProcess[str]) -> set[str]:
    lines = [line for line in done.stderr.splitlines() if line.startswith("LOADED ")]
    return set(lines[0].split()[1:])


def test_the_json_form_holds_every_fact(folder: Path) -> None:
    done = pegboard_command("plugins", "list", "--json", path=folder)
    content = json.loads(done.stdout)
    assert content["allowlist"] == {"variable": "VLLM_PLUGINS", "value": None}
    records = {record["id"]: record for record in content["plugins"]}
    good, bad = records["zz-good"], records["zz-bad"]
    time = good.pop("import_time_ms")
    assert time > 0
    assert good == {
        "id": "zz-good",
        "distribution": "zz-good",
        "version": "1.0",
        "group": "pegboard.plugins",
        "module": "zz_good",
        "surfaces": ["command"],
        "state": "ready",
        "reason": "",
        "registered": [{"surface": "command", "name": "greet", "claims": []}],
        "notes": [],
        "processes": ["front", "engine", "worker"],
    }
    assert bad["state"] == "failed" and "no luck" in bad["reason"]
    assert any("no luck" in notice for notice in content["notices"])


def test_the_table_shows_state_and_reason(folder: Path) -> None:
    done = pegboard_command("plugins", "list", path=folder)
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "ready" in rows["zz-good"] and "command:greet" in rows["zz-good"]
    assert rows["zz-good"].split()[6] == "all" and rows["id"].split()[6] == "processes"
    assert "failed" in rows["zz-bad"]
    assert done.stdout.count("no luck") == 1


def test_the_allowlist_shows_in_the_table(folder: Path) -> None:
    environ = {"VLLM_PLUGINS": "zz-good, zz-goof"}
    done = pegboard_command("plugins", "list", path=folder, environ=environ)
    assert "zz-bad is blocked" in " ".join(done.stdout.split())
    assert "did you mean 'zz-good'?" in " ".join(done.stdout.split())
    assert "zz_bad" not in loaded(done)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        ["plugins"],
        ["plugins", "--help"],
        ["plugins", "list"],
        ["plugins", "list", "--json"],
        ["plugin"],
    ],
)
def test_nothing_heavy_is_imported(words: list[str], folder: Path) -> None:
    done = pegboard_command(*words, path=folder)
    assert "pegboard" in loaded(done)
    assert not loaded(done) & HEAVY


def test_a_command_of_a_plugin_is_listed_and_runs(folder: Path) -> None:
    shown = pegboard_command("--help", path=folder)
    assert "greet" in shown.stdout and "Say hello" in shown.stdout
    broken = shown.stdout.splitlines()[-1]
    assert broken.startswith("Plugins that did not load: ") and "zz-bad" in broken
    done = pegboard_command("greet", "world", path=folder)
    assert (done.returncode, done.stdout) == (0, "hello world\n")


def test_a_wrong_word_after_plugins_is_bad_input(folder: Path) -> None:
    done = pegboard_command("plugins", "lst", path=folder)
    assert done.returncode == 2 and "list" in done.stderr
