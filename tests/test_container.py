"""The Dockerfile and its parts agree with the project and with the page that explains them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def lines(repo_root: Path) -> list[str]:
    """Instructions of the Dockerfile, each on one line."""
    text = (repo_root / "Dockerfile").read_text()
    kept = [line for line in text.splitlines() if not line.startswith("#")]
    joined = "\n".join(kept).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip()]


def extras(repo_root: Path) -> set[str]:
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"]) - {"dev"}


def rows(repo_root: Path, header: str) -> list[str]:
    """First cells of the table of the page whose first heading is `header`."""
    text = (repo_root / "docs/installing.md").read_text()
    table = text.partition(f"\n| {header} |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)


def test_what_is_copied_from_the_sources_exists(repo_root: Path, lines: list[str]) -> None:
    copied = [line.split()[1] for line in lines if line.startswith("COPY") and "--from" not in line]
    assert len(copied) >= 3
    assert all((repo_root / name).exists() for name in copied), copied


def test_the_container_serves_as_a_user_without_rights(lines: list[str]) -> None:
    last = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    words = {line.split()[0]: line.partition(" ")[2] for line in last}
    assert words["USER"].isdigit() and int(words["USER"]) > 1000
    assert words["EXPOSE"] == "8000" and words["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(words["ENTRYPOINT"])[:2] == ["pegboard", "serve"]
    check = json.loads(words["HEALTHCHECK"].partition("CMD")[2])
    compile(check[2], "healthcheck", "exec")
    assert check[0] == "python" and ":8000/health" in check[2]


def test_the_page_lists_every_build_argument_and_every_extra(
    repo_root: Path, lines: list[str]
) -> None:
    arguments = {re.split(r"[\s=]", line)[1] for line in lines if line.startswith("ARG")}
    assert set(rows(repo_root, "build argument")) == arguments
    assert set(rows(repo_root, "extra of `pegboard`")) == extras(repo_root)


def test_the_script_that_installs_is_one_and_asks_for_extras_that_there_are(
    repo_root: Path,
) -> None:
    script = repo_root / "docker/install.sh"
    subprocess.run(["sh", "-n", str(script)], check=True)
    text = script.read_text()
    wanted = {*re.findall(r"^extras=(\w+)$", text, re.M), *re.findall(r"\$extras,(\w+)", text)}
    assert wanted and wanted <= extras(repo_root)


def test_a_device_that_there_is_none_of_is_refused_before_anything_is_made(
    repo_root: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["sh", str(repo_root / "docker/install.sh"), str(tmp_path / "env"), str(tmp_path)],
        env={"PATH": "/usr/bin:/bin", "DEVICE": "tpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "DEVICE=tpu is not allowed: cpu or cuda" in done.stderr
    assert not (tmp_path / "env").exists()


def test_neither_history_nor_environments_go_into_the_image(repo_root: Path) -> None:
    ignored = (repo_root / ".dockerignore").read_text().splitlines()
    assert {".git", ".venv", "dist", "**/__pycache__"} <= set(ignored)
