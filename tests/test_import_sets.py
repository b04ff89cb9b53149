"""Which heavy libraries a process loads, measured in a fresh interpreter."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pegboard.plugins.collect import DESCRIPTOR_TYPES

HEAVY = {"torch", "triton", "transformers", "fastapi", "starlette", "uvicorn", "aiohttp"}
COMMANDS = {"typer", "click", "rich"}
"""Libraries of command lines: only a command that needs one may load it."""
LATE = {"msgspec", "cattrs", "importlib_metadata", "logging", "json", "argparse"}
"""Libraries that finding and registering plugins has no use for."""
ALWAYS = {
    *("_parts", "context", "descriptor", "foreign", "hooks", "levels", "metrics", "metrics_kinds"),
    "settings",
}
"""Files of `pegboard.api` that loading itself works with; beside them, those with descriptors."""
OF_PLUGINS = {"settings", "types"}
"""Modules of first-party plugins beside the one that the entry point names: what their hooks
return."""
QUICK_ROOMS = ("api", "cli", "config", "engine", "kv", "plugins", "scheduler", "text")

SHOW_ALL = "print('MODULES', *sys.modules)"
SHOW = "print('LOADED', *sorted({name.partition('.')[0] for name in sys.modules}))"
COMMAND_LINE = """
import sys
sys.argv = ["pegboard", *{arguments!r}]
from pegboard.cli import main
status = 0
try:
    status = main() or 0
except SystemExit as stop:
    status = stop.code or 0
print("STATUS", status)
"""


def loaded(code: str) -> tuple[set[str], str]:
    """Top-level modules that the code loads in a new interpreter, and all it printed."""
    command = [sys.executable, "-I", "-c", f"import sys\n{code}\n{SHOW}"]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    lines = [line for line in outcome.stdout.splitlines() if line.startswith("LOADED ")]
    return set(lines[-1].split()[1:]), outcome.stdout + outcome.stderr


def modules_after(arguments: list[str], site: Path) -> set[str]:
    """All modules that a command loads, with the plugins in `site` too."""
    command = COMMAND_LINE.format(arguments=arguments)
    _, printed = loaded(f"sys.path.insert(0, {str(site)!r})\n{command}\n{SHOW_ALL}")
    (line,) = (line for line in printed.splitlines() if line.startswith("MODULES "))
    return set(line.split()[1:])


def test_the_measurement_sees_what_is_loaded() -> None:
    assert "torch" in loaded("import torch")[0]
    assert not loaded("import json")[0] & HEAVY


@pytest.mark.parametrize(
    ("arguments", "status", "shown"),
    [
        (["--help"], 0, "plugins"),
        (["--version"], 0, "0."),
        (["plugins", "list"], 0, "llama"),
        (["plugins", "list", "--json"], 0, "llama"),
        (["plugins", "doctor", "--no-plugins-except", ""], 0, "0 problems"),
        (["plugins", "verify", "no-such.lock"], 2, "cannot be read"),
        (["no-such-command"], 2, "no-such-command"),
    ],
)
def test_light_commands_load_no_heavy_library(
    arguments: list[str], status: int, shown: str
) -> None:
    modules, printed = loaded(COMMAND_LINE.format(arguments=arguments))
    assert not modules & (HEAVY | COMMANDS)
    assert f"STATUS {status}" in printed
    assert shown in printed


@pytest.fixture(scope="module")
def forty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 40 plugins, those of the benchmark of start-up."""
    folder = str(Path(__file__).parent / "benchmarks")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    site = tmp_path_factory.mktemp("forty")
    importlib.import_module("bench_startup").install_many(site, 40)
    return site


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plugins", "list"], ["plugins", "list", "--json"]]
)
def test_many_plugins_leave_light_commands_light(forty: Path, arguments: list[str]) -> None:
    command = COMMAND_LINE.format(arguments=arguments)
    modules, printed = loaded(f"sys.path.insert(0, {str(forty)!r})\n{command}")
    assert not modules & HEAVY
    assert "STATUS 0" in printed
    assert "many-1" in printed  # a command, which the help names


@pytest.mark.parametrize("arguments", [["--help"], ["plugins", "list"]])
def test_registering_imports_no_more_than_descriptors(forty: Path, arguments: list[str]) -> None:
    """What a running engine needs of the contracts and of plugins comes when it is asked for."""
    found = modules_after(arguments, forty)
    described = {target.partition(":")[0] for target in DESCRIPTOR_TYPES.values()}
    contracts = {name for name in found if name.startswith("pegboard.api.")}
    assert "pegboard.api.connector" in contracts
    assert contracts <= described | {f"pegboard.api.{name}" for name in ALWAYS}
    inside = {n.partition(".")[2] for n in found if n.startswith(("pegboard_", "many_"))}
    assert inside <= {"", *OF_PLUGINS}
    assert not found & LATE


@pytest.mark.parametrize("module", sorted({t.partition(":")[0] for t in DESCRIPTOR_TYPES.values()}))
def test_what_a_contract_file_exports_late_is_there(module: str) -> None:
    contract = importlib.import_module(module)
    for name in contract.__all__:
        assert getattr(contract, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        contract.no_such_name  # noqa: B018


def test_each_of_many_plugins_is_ready(forty: Path) -> None:
    code = f"sys.path.insert(0, {str(forty)!r})\n" + COMMAND_LINE.format(
        arguments=["plugins", "list", "--json"]
    )
    _, printed = loaded(code)
    rows = json.loads(printed[: printed.rindex("}") + 1])["plugins"]
    states = [row["state"] for row in rows if row["id"].startswith("many-")]
    assert states == ["ready"] * 40


def test_importing_pegboard_is_light() -> None:
    modules, _ = loaded("import pegboard")
    assert "pegboard" in modules
    assert not modules & HEAVY


def test_the_planning_rooms_are_light_also_through_what_they_import(workspace: ModuleType) -> None:
    package = workspace.ROOT / "core" / "src" / "pegboard"
    paths = [path for room in QUICK_ROOMS for path in (package / room).rglob("*.py")]
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in paths]
    modules = sorted(name.removesuffix(".__init__") for name in names)
    found, _ = loaded(f"import importlib\nfor name in {modules!r}: importlib.import_module(name)")
    assert len(modules) > 15
    assert not found & HEAVY


def test_plugin_modules_are_light(workspace: ModuleType) -> None:
    members = [member for member in workspace.members(workspace.ROOT) if member.entry_points()]
    assert members
    for member in members:
        assert not loaded(f"import {member.module}")[0] & HEAVY, member.module
