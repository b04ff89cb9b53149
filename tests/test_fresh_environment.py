"""Wheels of all members in an environment of their own: what a user has after `pip install`."""

from __future__ import annotations

import zipfile
from email.parser import Parser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.accept

PLUGINS = ("pegboard-model-llama", "pegboard-quant-gguf", "pegboard-platform-cpu")


@pytest.fixture(scope="module")
def wheels(
    repo_root: Path,
    workspace: ModuleType,
    make_wheels: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Any:
    """Distribution -> its wheel, the metapackage included."""
    folders = {m.distribution: repo_root / m.folder for m in workspace.members(repo_root)}
    return make_wheels(
        tmp_path_factory.mktemp("all") / "wheels", {"pegboard": repo_root, **folders}
    )


@pytest.fixture
def fresh(wheels: dict[str, Path], make_fresh: Any, tmp_path: Path) -> Any:
    environment = make_fresh(tmp_path / "env")
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


def test_the_command_finds_the_installed_plugins(fresh: Any) -> None:
    listing = fresh.pegboard("plugins", "list")
    assert listing.returncode == 0, listing.stderr
    assert all(name in listing.stdout for name in PLUGINS)


def test_a_model_goes_with_its_wheel_and_comes_back_with_it(
    fresh: Any, wheels: dict[str, Path], smollm2_path: Path
) -> None:
    prompt = ("run", str(smollm2_path), "Say hello.", "--max-tokens", "4")
    assert fresh.pegboard(*prompt).returncode == 0
    fresh.uninstall("pegboard-model-llama")
    refused = fresh.pegboard(*prompt)
    assert refused.returncode != 0
    assert "pegboard-model-llama" in refused.stderr
    assert "Traceback" not in refused.stderr
    fresh.install(wheels["pegboard-model-llama"])
    assert fresh.pegboard(*prompt).returncode == 0
