"""Fixtures for the tests that cross distributions."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

import pytest


def run(command: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """A process that sees no modules but those of its environment."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False
    )


def must(command: list[str], cwd: Path) -> str:
    """What the command prints; it has to succeed."""
    outcome = run(command, cwd)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def libraries() -> Iterator[Path]:
    """What is installed here, Pegboard and files that add to the import path left out."""
    for folder in map(Path, sys.path):
        if folder.name in {"site-packages", "dist-packages"} and folder.is_dir():
            for path in folder.iterdir():
                if "pegboard" not in path.name.lower() and path.suffix != ".pth":
                    yield path


class Fresh:
    """An environment that shares the libraries of this one but not its Pegboard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, symlinks=True, with_pip=False)
        site = next(folder.glob("lib/python*/site-packages"))
        for path in libraries():
            if not (site / path.name).exists():
                (site / path.name).symlink_to(path)

    def pip(self, *arguments: str) -> str:
        python = str(self.folder / "bin" / "python")
        return must([sys.executable, "-m", "pip", "--python", python, *arguments], self.folder)

    def install(self, *wheels: Path) -> None:
        self.pip("install", "-q", "--no-deps", "--no-index", *map(str, wheels))

    def uninstall(self, *distributions: str) -> None:
        self.pip("uninstall", "-q", "-y", *distributions)

    def pegboard(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(self.folder / "bin" / "pegboard"), *arguments], self.folder)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run([str(self.folder / "bin" / "python"), *arguments], self.folder)


def build_wheels(target: Path, folders: Mapping[str, Path]) -> dict[str, Path]:
    """Wheels of the projects in `folders`, by distribution, into `target`; nothing is fetched."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    must([*pip, "-w", str(target), *map(str, folders.values())], target.parent)
    return {name: next(target.glob(f"{name.replace('-', '_')}-*.whl")) for name in folders}


@pytest.fixture(scope="session")
def make_fresh() -> type[Fresh]:
    """Makes an environment in a folder."""
    return Fresh


@pytest.fixture(scope="session")
def make_wheels() -> Callable[..., dict[str, Path]]:
    """The function `build_wheels`."""
    return build_wheels


@pytest.fixture(scope="session")
def workspace(repo_root: Path) -> ModuleType:
    """The module `scripts/workspace.py`, which knows the members."""
    spec = importlib.util.spec_from_file_location("workspace", repo_root / "scripts/workspace.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["workspace"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def project_files(repo_root: Path) -> list[Path]:
    """Every file that belongs to the project: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    listing = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = (repo_root / name for name in listing.stdout.split("\0") if name)
    return sorted(path for path in paths if path.is_file())
