"""The page of each family of plugins shows what `plugins new` writes and what the kits have."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pegboard_testkit.scaffold import write_plugin

NAMES = {
    "attention": "swift",
    "connector": "cellar",
    "model": "parallel",
    "platform": "abacus",
    "quant": "octet",
}
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r"# in (\S+)\n")
LONGEST_PAGE = 150
each_family = pytest.mark.parametrize("surface", sorted(NAMES))


def page_of(root: Path, surface: str) -> str:
    return (root / f"docs/plugins/{surface}.md").read_text()


def commands(text: str) -> Iterator[tuple[list[str], str]]:
    """Words and shown output of each command of the console blocks, in order."""
    for language, block in BLOCK.findall(text):
        if language == "console":
            for step in block.split("$ ")[1:]:
                line, _, output = step.partition("\n")
                yield shlex.split(line), output


def rows(text: str, header: str) -> list[list[str]]:
    """Cells of the table whose first heading is `header`."""
    _, found, rest = text.partition(f"\n| {header} |")
    assert found, f"there is no table that begins with {header!r}"
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines]


def stands_in(snippet: str, text: str) -> bool:
    """Whether the lines of a snippet follow one another in a text, at whatever depth."""
    wanted, lines = snippet.rstrip().splitlines(), text.splitlines()
    return any(
        textwrap.dedent("\n".join(lines[at : at + len(wanted)])).splitlines() == wanted
        for at in range(len(lines) - len(wanted) + 1)
    )


def test_a_snippet_is_found_at_any_depth_but_not_changed() -> None:
    text = "class A:\n    def f(self):\n        return 1\n\n    x = 2\n"
    assert stands_in("def f(self):\n    return 1\n", text)
    assert not stands_in("def f(self):\n    return 2\n", text)
    assert not stands_in("def f(self):\nreturn 1\n", text)


@each_family
def test_what_a_page_shows_is_what_the_command_writes(
    repo_root: Path, tmp_path: Path, surface: str
) -> None:
    folder = write_plugin(surface, NAMES[surface], tmp_path / "new")
    seen = 0
    for _, block in BLOCK.findall(page_of(repo_root, surface)):
        found = PLACE.match(block)
        if found is not None:
            seen += 1
            snippet = block[found.end() :]
            assert stands_in(snippet, (folder / found[1]).read_text()), f"{found[1]}:\n{snippet}"
    assert seen >= 3


@each_family
def test_the_files_that_a_page_lists_are_those_that_there_are(
    repo_root: Path, tmp_path: Path, surface: str
) -> None:
    folder, name = write_plugin(surface, NAMES[surface], tmp_path / "new"), NAMES[surface]
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    listed = {cells[0].strip("`") for cells in rows(page_of(repo_root, surface), "file")}
    assert written - listed == {"README.md", "pyproject.toml", f"tests/test_{name}.py"}
    assert listed <= written


@each_family
def test_the_commands_of_a_page_are_right(repo_root: Path, tmp_path: Path, surface: str) -> None:
    """`plugins new` is run and its output compared; the others must name what it wrote."""
    distribution = f"pegboard-{surface}-{NAMES[surface]}"
    plain = [
        "pip install pegboard-testkit",
        f"pegboard plugins new {surface} {NAMES[surface]}",
        f"pip install -e {distribution}[test]",
        f"python -m pytest -q {distribution}/tests",
        "pip install build twine",
        f"python -m build {distribution}",
        f"python -m twine upload {distribution}/dist/*",
    ]
    steps = list(commands(page_of(repo_root, surface)))
    assert [" ".join(words) for words, _ in steps] == plain
    program = Path(sys.executable).with_name("pegboard")
    outcome = subprocess.run(
        [str(program), *steps[1][0][1:]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == steps[1][1]
    assert (tmp_path / distribution / "tests").is_dir()


@each_family
def test_the_kit_has_the_attributes_that_a_page_names(repo_root: Path, surface: str) -> None:
    kit: Any = getattr(
        import_module(f"pegboard_testkit.{surface}_kit"), f"{surface.capitalize()}Kit"
    )
    text = page_of(repo_root, surface)
    assert f"`{kit.__name__}`" in text
    shown = {cells[0].strip("`"): cells[1].strip("`") for cells in rows(text, "attribute")}
    usual = {name: repr(getattr(kit, name)) if hasattr(kit, name) else "" for name in shown}
    assert shown == usual
    bases = [base for base in kit.__mro__ if base is not object]
    own = {n for b in bases for n in [*vars(b), *inspect.get_annotations(b)] if n.islower()}
    wanted = {n for n in own if not n.startswith(("_", "test_")) and not callable_of(kit, n)}
    unnamed = {name for name in wanted if f"`{name}" not in text}
    assert not unnamed, f"the page does not name {unnamed}"


def callable_of(kit: type, name: str) -> bool:
    """A method or a fixture, which is no setting."""
    value = inspect.getattr_static(kit, name, None)
    return value is not None and not isinstance(value, (bool, int, float, str, tuple, dict))


def messages(root: Path) -> str:
    """All texts in the code of core and testkit, what is put in replaced by `…`."""
    found = []
    for folder in ("core/src/pegboard", "plugins/testkit/src/pegboard_testkit"):
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = (getattr(part, "value", "") for part in node.values)
                    found.append("".join(p if isinstance(p, str) else "…" for p in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_the_messages_in_tables_of_mistakes_exist(repo_root: Path) -> None:
    known, seen = messages(repo_root), 0
    for surface in NAMES:
        for cells in rows(page_of(repo_root, surface), "what you see"):
            for message in re.findall(r"`([^`]+)`", cells[0]):
                seen += 1
                for part in message.split(" … "):
                    assert part in known, f"{surface}: no message has {part!r}"
    assert seen > 20


def test_pages_stay_short_and_the_guide_leads_to_each(repo_root: Path) -> None:
    guide = (repo_root / "docs/writing-a-plugin.md").read_text()
    pages = sorted((repo_root / "docs/plugins").glob("*.md"))
    assert [page.stem for page in pages] == sorted(NAMES)
    for page in pages:
        assert len(page.read_text().splitlines()) <= LONGEST_PAGE, page.name
        assert f"(plugins/{page.name})" in guide


def test_the_policy_names_what_decides(repo_root: Path) -> None:
    from pegboard.api.deprecation import DeprecatedWarning  # the page's own example checks the rest

    text = (repo_root / "docs/compatibility.md").read_text()
    assert f"{DeprecatedWarning.__module__}.{DeprecatedWarning.__name__}" in text
    assert issubclass(DeprecatedWarning, FutureWarning)


@pytest.mark.accept
@each_family
def test_a_plugin_of_each_page_becomes_a_wheel_that_passes_its_tests(
    repo_root: Path, tmp_path: Path, surface: str
) -> None:
    """From `plugins new` to a wheel in an environment, as the page says; upload left out."""
    folder = write_plugin(surface, NAMES[surface], tmp_path / "source")
    site = tmp_path / "site"
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", str(folder)]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run(build, check=True, capture_output=True, cwd=tmp_path)
    (wheel,) = (folder / "dist").glob("*.whl")
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if ".dist-info" not in top} == {
        f"pegboard_{surface}_{NAMES[surface]}"
    }
    subprocess.run([*pip, str(site), str(wheel)], check=True)
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests")],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "skipped" not in outcome.stdout
