"""Wheels of all members in an environment of their own: what a user has after `pip install`."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
import zipfile
from email.parser import Parser
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.accept

PLUGINS = ("pegboard-model-llama", "pegboard-quant-gguf", "pegboard-platform-cpu")


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def must(command: list[str], cwd: Path) -> str:
    outcome = run(command, cwd)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def wheels(
    repo_root: Path, workspace: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Distribution -> its wheel, the metapackage included."""
    target = tmp_path_factory.mktemp("wheels")
    built = {"pegboard": Path()} | {m.distribution: m.folder for m in workspace.members(repo_root)}
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    must([*pip, "-w", str(target), *(f"./{folder}" for folder in built.values())], repo_root)
    return {name: next(target.glob(f"{name.replace('-', '_')}-*.whl")) for name in built}


class Fresh:
    """An environment that shares the libraries of this one but not its Pegboard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True, with_pip=False)
        site = next(folder.glob("lib/python*/site-packages"))
        for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if "pegboard" not in path.name.lower():
                (site / path.name).symlink_to(path)

    def pip(self, *arguments: str) -> str:
        python = str(self.folder / "bin" / "python")
        return must([sys.executable, "-m", "pip", "--python", python, *arguments], self.folder)

    def install(self, *wheels: Path) -> None:
        self.pip("install", "-q", "--no-deps", "--no-index", *map(str, wheels))

    def pegboard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(self.folder / "bin" / "pegboard"), *arguments], self.folder)


@pytest.fixture
def fresh(wheels: dict[str, Path], tmp_path: Path) -> Fresh:
    environment = Fresh(tmp_path / "env")
    environment.install(*wheels.values())
    return environment


def test_every_wheel_holds_its_package_and_nothing_else(
    repo_root: Path, workspace: ModuleType, wheels: dict[str, Path]
) -> None:
    for member in workspace.members(repo_root):
        names = zipfile.ZipFile(wheels[member.distribution]).namelist()
        tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
        assert tops == {member.module}, member.distribution
        assert f"{member.module}/py.typed" in names
    core = zipfile.ZipFile(wheels["pegboard-core"]).namelist()
    assert "pegboard/plugins/first_party.json" in core
    metapackage = zipfile.ZipFile(wheels["pegboard"]).namelist()
    assert all(".dist-info/" in name for name in metapackage)


def test_every_wheel_states_licence_python_and_version(
    repo_root: Path, workspace: ModuleType, wheels: dict[str, Path]
) -> None:
    for distribution, wheel in wheels.items():
        with zipfile.ZipFile(wheel) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
            facts = Parser().parsestr(archive.read(name).decode())
        assert facts["Name"] == distribution
        assert facts["Version"] == workspace.read_version(repo_root)
        assert facts["License-Expression"] == "Apache-2.0"
        assert facts["Requires-Python"] == ">=3.10"


def test_the_command_finds_the_installed_plugins(fresh: Fresh) -> None:
    listing = fresh.pegboard("plugins", "list")
    assert listing.returncode == 0, listing.stderr
    assert all(name in listing.stdout for name in PLUGINS)


def test_a_model_goes_with_its_wheel_and_comes_back_with_it(
    fresh: Fresh, wheels: dict[str, Path], smollm2_path: Path
) -> None:
    prompt = ("run", str(smollm2_path), "Say hello.", "--max-tokens", "4")
    assert fresh.pegboard(*prompt).returncode == 0
    fresh.pip("uninstall", "-q", "-y", "pegboard-model-llama")
    refused = fresh.pegboard(*prompt)
    assert refused.returncode != 0
    assert "pegboard-model-llama" in refused.stderr
    assert "Traceback" not in refused.stderr
    fresh.install(wheels["pegboard-model-llama"])
    assert fresh.pegboard(*prompt).returncode == 0
