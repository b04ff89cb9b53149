"""The project's files speak of the project alone, and stay small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

MACHINE_FOLDERS = ("work", "tmp", "root", "home", "opt", "mnt", "Users")
REGISTRY_HOSTS = ("pypi.org", "pythonhosted", "download.pytorch", "huggingface.co", "hf.co/")
LARGEST_FILE = 1_000_000

MACHINE_PATH = re.compile(rf"(?<![\w.~}}*)/-])/(?:{'|'.join(MACHINE_FOLDERS)})/[\w.-]")
HOST = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS))
ISSUE_NUMBER = re.compile(r"\bissue\s+#?\d", re.IGNORECASE)


def texts(project_files: list[Path]) -> list[tuple[Path, str]]:
    """All files that are text, except this one, which names what it looks for."""
    found = []
    for path in project_files:
        content = path.read_bytes()
        if path.name != Path(__file__).name and b"\0" not in content:
            found.append((path, content.decode("utf-8")))
    return found


def matches(project_files: list[Path], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path}:{number}: {line.strip()[:100]}"
        for path, text in texts(project_files)
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (MACHINE_PATH, 'open("/' + 'work/main/x")', True),
        (MACHINE_PATH, "see /" + "tmp/a", True),
        (MACHINE_PATH, "docs/" + "work/main", False),
        (MACHINE_PATH, "~/" + "home/x", False),
        (HOST, "https://" + "pypi.org/simple", True),
        (ISSUE_NUMBER, "fixes issue " + "#12", True),
        (ISSUE_NUMBER, "case O12", False),
    ],
)
def test_the_patterns_find_what_they_should(
    pattern: re.Pattern[str], line: str, found: bool
) -> None:
    assert bool(pattern.search(line)) is found


def test_no_file_names_a_path_of_some_machine(project_files: list[Path]) -> None:
    found = matches(project_files, MACHINE_PATH)
    assert not found, "\n".join(found)


def test_no_file_names_the_host_of_a_registry(project_files: list[Path]) -> None:
    found = matches(project_files, HOST)
    assert not found, "\n".join(found)


def test_no_file_refers_to_an_issue_by_number(project_files: list[Path]) -> None:
    found = matches(project_files, ISSUE_NUMBER)
    assert not found, "\n".join(found)


def test_no_file_is_large(project_files: list[Path]) -> None:
    large = [str(path) for path in project_files if path.stat().st_size > LARGEST_FILE]
    assert len(project_files) > 20
    assert not large, "\n".join(large)


def test_no_file_carries_unfinished_work(project_files: list[Path]) -> None:
    pattern = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|raise NotImplementedError")
    code = [path for path in project_files if path.suffix == ".py"]
    found = matches(code, pattern)
    assert not found, "\n".join(found)
