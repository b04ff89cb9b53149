"""Fixtures for the tests that cross distributions."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest


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
