"""The documentation agrees with the project: links, commands and examples are followed."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import attrs
import pytest

from pegboard import EngineConfig, SamplingParams, errors
from pegboard.api.hooks import HOOK_SURFACES
from pegboard.cli.table import COMMANDS
from pegboard.config.aliases import ALIASES
from pegboard.config.engine import POLICIES
from pegboard.plugins import PluginState
from pegboard.plugins.doctor import Check
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_quant_gguf.pretokenizers import PRETOKENIZERS
from pegboard_quant_gguf.types import SUPPORTED_TYPES

BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
OURS = {"pegboard", "pegboard_testkit"}
FILE_LINE = re.compile(r"^# ([\w./-]+\.(?:py|toml))\n")


def pages(project_files: list[Path]) -> list[Path]:
    return [path for path in project_files if path.suffix == ".md"]


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code of one language."""
    return [code for found, code in BLOCK.findall(page.read_text()) if found == language]


def example_files(page: Path) -> dict[str, str]:
    """Files that a page shows: blocks whose first line is a comment with a file name."""
    shown = [code for _, code in BLOCK.findall(page.read_text())]
    named = [(FILE_LINE.match(code), code) for code in shown]
    return {found.group(1): code for found, code in named if found is not None}


def example_commands(page: Path) -> Iterator[tuple[str, str]]:
    """Commands and expected output from console blocks that start with `pip install .`."""
    for block in blocks(page, "console"):
        if not block.startswith("$ pip install ."):
            continue
        for step in block.split("$ ")[2:]:
            command, _, output = step.partition("\n")
            yield command, output


def table(page: Path, header: str) -> dict[str, list[str]]:
    """Rows of the table whose first heading is `header`, by first cell, without the backquotes."""
    _, found, rest = page.read_text().partition(f"| {header} |")
    assert found, f"{page.name} has no table that begins with {header!r}"
    rows = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split(" |")] for row in rows]
    assert len({row[0] for row in cells}) == len(cells), f"{header}: a row stands twice"
    return {row[0]: row[1:] for row in cells}


def pages_with_a_plugin(project_files: list[Path]) -> list[Path]:
    return [page for page in pages(project_files) if "pyproject.toml" in example_files(page)]


def run(command: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_relative_link_leads_somewhere(project_files: list[Path]) -> None:
    seen, dead = 0, []
    for page in pages(project_files):
        for target in LINK.findall(page.read_text()):
            if re.match(r"[a-z]+:", target) or target.startswith("#"):
                continue
            seen += 1
            if not (page.parent / target.partition("#")[0]).exists():
                dead.append(f"{page.name}: {target}")
    assert seen
    assert not dead, "\n".join(dead)


def test_commands_named_in_the_docs_exist_in_the_makefile(
    repo_root: Path, project_files: list[Path]
) -> None:
    targets = set(re.findall(r"^([\w-]+):", (repo_root / "Makefile").read_text(), re.MULTILINE))
    named = {
        (page.name, target)
        for page in pages(project_files)
        for target in re.findall(r"(?:`|\$ )make ([a-z][\w-]*)", page.read_text())
    }
    unknown = [f"{page}: make {target}" for page, target in named if target not in targets]
    assert ("README.md", "demo") in named
    assert ("README.md", "test") in named
    assert not unknown, "\n".join(unknown)


def test_the_makefile_explains_each_of_its_targets(repo_root: Path) -> None:
    text = (repo_root / "Makefile").read_text()
    targets = set(re.findall(r"^([\w-]+):(?!=)", text, re.MULTILINE))
    explained = set(re.findall(r"make ([\w-]+)  ", text))
    assert targets - explained <= {"help", "setup", "setup-dev"}


def test_python_examples_are_valid_and_import_what_exists(project_files: list[Path]) -> None:
    seen = 0
    for page in pages(project_files):
        for code in blocks(page, "python"):
            tree = ast.parse(code, filename=str(page))
            seen += 1
            for node in ast.walk(tree):
                module = node.module if isinstance(node, ast.ImportFrom) else None
                if module is None or module.partition(".")[0] not in OURS:
                    continue
                missing = [
                    alias.name
                    for alias in node.names
                    if not hasattr(importlib.import_module(module), alias.name)
                ]
                assert not missing, f"{page.name}: {module} has no {missing}"
    assert seen >= 2


def test_the_readme_keeps_its_examples_to_about_ten_lines(repo_root: Path) -> None:
    for code in blocks(repo_root / "README.md", "python"):
        lines = [line for line in code.splitlines() if line and not line.startswith("#")]
        assert len(lines) <= 10, code


def test_plugins_shown_in_the_docs_install_and_run(
    repo_root: Path, project_files: list[Path], tmp_path: Path
) -> None:
    found = pages_with_a_plugin(project_files)
    assert repo_root / "README.md" in found
    for number, page in enumerate(found):
        folder = tmp_path / f"example-{number}"
        for name, code in example_files(page).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(code)
        install_and_run(page, folder, folder / "installed")


def test_the_smallest_model_plugin_has_at_most_20_lines(repo_root: Path) -> None:
    files = example_files(repo_root / "docs/smallest-model-plugin.md")
    lines = [
        line
        for name in ("pyproject.toml", "pegboard_tinier.py")
        for line in files[name].splitlines()[1:]
        if line
    ]
    assert 10 < len(lines) <= 20, len(lines)


def untimed(output: str) -> str:
    """Output without how long something took."""
    return re.sub(r"in \d+\.\d+s", "in some seconds", output)


def install_and_run(page: Path, folder: Path, site: Path) -> None:
    """Install an example beside the environment, then compare what its commands print."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    outcome = run([*pip, "--target", str(site), "."], folder)
    assert outcome.returncode == 0, f"{page.name}: {outcome.stderr}"
    steps = list(example_commands(page))
    assert steps, f"{page.name} shows a plugin but no console block that starts with pip install"
    for command, expected in steps:
        words = command.split()
        program = Path(sys.executable).with_name(words[0])
        outcome = run([str(program), *words[1:]], folder, PYTHONPATH=str(site), COLUMNS="80")
        assert outcome.returncode == 0, f"{page.name}: {command}: {outcome.stderr}"
        assert untimed(outcome.stdout) == untimed(expected), f"{page.name}: {command}"


def test_the_first_python_example_of_the_readme_runs(
    repo_root: Path, smollm2_path: Path, tmp_path: Path
) -> None:
    """As it is written, for someone who ran `make demo` and set no variable."""
    code = blocks(repo_root / "README.md", "python")[0]
    models = tmp_path / "home/.cache/pegboard/models"
    models.mkdir(parents=True)
    (models / smollm2_path.name).symlink_to(smollm2_path)
    (tmp_path / "example.py").write_text(code)
    outcome = run([sys.executable, "example.py"], tmp_path, HOME=str(tmp_path / "home"))
    assert outcome.returncode == 0, outcome.stderr
    assert "The capital of France is" in outcome.stdout
    assert len(outcome.stdout.split()) > 25


def test_the_examples_of_the_manual_run(
    repo_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_tiny_model(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    printed = {}
    for name, code in example_files(repo_root / "docs/using.md").items():
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
        printed[name] = capsys.readouterr().out
    names = {"first.py", "chat.py", "stream.py", "serving.py", "salted.py", "urgent.py"}
    assert printed.keys() == names
    assert len(printed["serving.py"].splitlines()) == 2
    counts = [line.split()[:2] for line in printed["first.py"].splitlines()]
    assert [prompt for prompt, _ in counts] == ["16", "16"]
    assert all(1 <= int(answer) <= 8 for _, answer in counts)
    assert printed["chat.py"].endswith("<user>Why is the sky blue?\n<assistant>\n")
    assert printed["stream.py"]
    assert printed["salted.py"].splitlines() == ["ada 0", "ada 32", "bob 0"]
    assert printed["urgent.py"] == "Now! 0\n"


def test_the_manual_lists_every_sampling_parameter_with_its_default(repo_root: Path) -> None:
    rows = table(repo_root / "docs/using.md", "parameter")
    usual = SamplingParams()
    assert {name: row[0] for name, row in rows.items()} == {
        name: repr(getattr(usual, name)) for name in SamplingParams.fields()
    }


def test_the_manual_lists_every_engine_option_with_its_default(repo_root: Path) -> None:
    rows = table(repo_root / "docs/using.md", "option")
    assert {name: row[0] for name, row in rows.items()} == {
        field.name: "" if field.default is attrs.NOTHING else repr(field.default)
        for field in attrs.fields(EngineConfig)
    }


def test_the_manual_lists_every_alias_of_an_option(repo_root: Path) -> None:
    rows = table(repo_root / "docs/using.md", "alias")
    assert {name: row[0].partition("`")[0] for name, row in rows.items()} == {
        name: alias.setting for name, alias in ALIASES.items()
    }


def test_the_manual_lists_every_policy(repo_root: Path) -> None:
    assert set(table(repo_root / "docs/using.md", "policy")) == set(POLICIES)


def test_the_manual_lists_every_error_with_its_exit_code(repo_root: Path) -> None:
    rows = table(repo_root / "docs/using.md", "class")
    blames_a_value = {
        name: issubclass(getattr(errors, name), ValueError)
        for name in errors.__all__
        if name != "PegboardError"
    }
    assert {name: row[1] for name, row in rows.items()} == {
        name: "2" if value else "1" for name, value in blames_a_value.items()
    }


def test_the_status_page_lists_what_gguf_files_may_hold(repo_root: Path) -> None:
    page = repo_root / "docs/status.md"
    assert list(table(page, "type")) == list(SUPPORTED_TYPES)
    assert set(table(page, "pre-tokeniser (`tokenizer.ggml.pre`)")) == set(PRETOKENIZERS)


def test_the_page_for_operators_lists_every_state_and_every_check(repo_root: Path) -> None:
    page = repo_root / "docs/operating.md"
    assert list(table(page, "state")) == list(get_args(PluginState))
    assert list(table(page, "check")) == list(get_args(Check))
    groups = [entry.name.split() for entry in COMMANDS]
    own = [words[1] for words in groups if words[0] == "plugins" and len(words) > 1]
    for command in (*own, "collect-env"):
        assert re.search(rf"`(pegboard |pegboard plugins )?{command}\b", page.read_text()), command


def test_the_guide_lists_every_surface_with_its_hook_and_contract(repo_root: Path) -> None:
    page = repo_root / "docs/writing-a-plugin.md"
    rows = table(page, "surface")
    assert {row[1]: surface for surface, row in rows.items()} == HOOK_SURFACES
    for surface, row in rows.items():
        assert f"core/src/pegboard/api/{surface}.py" in row[2]


def test_make_targets_are_listed_for_developers(repo_root: Path) -> None:
    explained = set(re.findall(r'"make ([\w-]+)  ', (repo_root / "Makefile").read_text()))
    listed = table(repo_root / "docs/development.md", "command")
    assert set(listed) == {f"make {target}" for target in explained}


def test_every_change_fragment_names_its_version_and_kind(repo_root: Path) -> None:
    kinds = re.findall(r"^\* `(# \w+)`", (repo_root / "docs/changes/README.md").read_text(), re.M)
    fragments = sorted((repo_root / "docs/changes").glob("[0-9]*.md"))
    assert len(kinds) == 5
    assert fragments
    for fragment in fragments:
        assert re.fullmatch(r"\d+\.\d+\.\d+-[a-z0-9-]+\.md", fragment.name)
        assert fragment.read_text().splitlines()[0] in kinds, fragment.name
