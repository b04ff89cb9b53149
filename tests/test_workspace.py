"""The members agree with each other, and the script that checks it can tell when they do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

FACTS = ("README.md", "pyproject.toml")


@pytest.fixture
def copy(repo_root: Path, workspace: ModuleType, tmp_path: Path) -> Path:
    """A copy of the project files and entry-point modules, to be broken."""
    files = [Path("pyproject.toml"), Path("scripts/workspace.py"), workspace.FIRST_PARTY]
    files.append(Path("core/src/pegboard/__about__.py"))
    for member in workspace.members(repo_root):
        files.append(member.folder / "pyproject.toml")
        files.append(member.package.relative_to(repo_root) / "__init__.py")
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repo_root / file, tmp_path / file)
    return tmp_path


def check(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(root / "scripts/workspace.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_members_agree(repo_root: Path) -> None:
    outcome = check(repo_root, "--check")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


def test_the_six_first_members_are_found(repo_root: Path, workspace: ModuleType) -> None:
    found = {str(member.folder): member.distribution for member in workspace.members(repo_root)}
    assert found.items() >= {
        ("core", "pegboard-core"),
        ("plugin_models/llama", "pegboard-model-llama"),
        ("plugin_platforms/cpu", "pegboard-platform-cpu"),
        ("plugin_quant/gguf", "pegboard-quant-gguf"),
        ("plugins/attention-torch", "pegboard-attention-torch"),
        ("plugins/testkit", "pegboard-testkit"),
    }


@pytest.mark.parametrize(
    ("file", "old", "new", "complaint"),
    [
        ("core/src/pegboard/__about__.py", '"0.', '"9.', "out of date"),
        ("plugin_models/llama/pyproject.toml", 'version = "', 'version = "9.', "out of date"),
        ("plugin_quant/gguf/pyproject.toml", ">=3.10", ">=3.11", "out of date"),
        ("plugins/testkit/pyproject.toml", "Apache-2.0", "MIT", "out of date"),
        ("plugin_platforms/cpu/pyproject.toml", "pegboard-core==", "pegboard-core>=", "must hold"),
        ("plugin_models/llama/pyproject.toml", "-model-", "-models-", "must be 'pegboard-model-"),
        ("plugins/attention-torch/pyproject.toml", "torch = ", "eager = ", "one entry point"),
        ("pyproject.toml", "pegboard-model-llama==", "pegboard-model-lama==", "names no member"),
        ("core/src/pegboard/plugins/first_party.json", "pegboard.models", "x", "out of date"),
    ],
)
def test_a_disagreement_is_reported(
    copy: Path, file: str, old: str, new: str, complaint: str
) -> None:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    outcome = check(copy, "--check")
    assert outcome.returncode == 1, outcome.stderr
    assert complaint in outcome.stdout


def test_writing_mends_a_new_version_everywhere(copy: Path) -> None:
    about = copy / "core/src/pegboard/__about__.py"
    about.write_text('__version__ = "7.8.9"\n')
    assert check(copy).returncode == 0
    assert check(copy, "--check").stdout == ""
    assert "pegboard-core==7.8.9" in (copy / "plugin_models/llama/pyproject.toml").read_text()
    assert 'version = "7.8.9"' in (copy / "pyproject.toml").read_text()


def test_every_member_has_the_same_five_things(repo_root: Path, workspace: ModuleType) -> None:
    wrong = []
    for member in workspace.members(repo_root):
        folder = repo_root / member.folder
        code = [path for path in member.package.rglob("*.py") if path.name != "__init__.py"]
        tests = list((folder / "tests").rglob("test_*.py"))
        wrong += [f"{member.folder}: no {name}" for name in FACTS if not (folder / name).is_file()]
        wrong += [] if code else [f"{member.folder}: no module beside __init__.py"]
        wrong += [] if tests else [f"{member.folder}: no tests"]
        wrong += [] if (member.package / "py.typed").is_file() else [f"{member.folder}: py.typed"]
    assert not wrong, "\n".join(wrong)


def test_test_files_have_names_of_their_own(project_files: list[Path]) -> None:
    tests = (path for path in project_files if "tests" in path.parts)
    names = [path.name for path in tests if path.match("test_*.py")]
    assert names
    assert sorted(set(names)) == sorted(names)


def test_members_carry_no_tool_configuration(repo_root: Path, workspace: ModuleType) -> None:
    stray = {"pytest.ini", "tox.ini", "setup.cfg", "ruff.toml", ".ruff.toml", "mypy.ini"}
    for member in workspace.members(repo_root):
        tools = member.data.get("tool", {})
        assert set(tools) <= {"hatch"}, f"{member.folder}: tool configuration belongs to the root"
        assert set(tools.get("hatch", {})) <= {"build"}, member.folder
        found = {path.name for path in (repo_root / member.folder).iterdir()} & stray
        assert not found, f"{member.folder}: {found}"


def test_the_listing_of_first_party_plugins_says_what_each_provides(
    repo_root: Path, workspace: ModuleType
) -> None:
    listing = workspace.first_party(repo_root)
    assert listing, "no plugin has an entry point"
    adopters = {m.distribution for m in workspace.members(repo_root) if m.adopted()}
    empty = [n for n, entry in listing.items() if not entry["claims"] and n not in adopters]
    assert not empty, f"hooks of {empty} register nothing"
