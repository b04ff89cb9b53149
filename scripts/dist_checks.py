"""What a wheel and an sdist of this project must be."""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import re
import tarfile
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath

__all__ = ["sdist_faults", "wheel_faults"]

STRAY = re.compile(
    r"(^|/)(__pycache__|\.[^/]+)(/|$)|(^|/)(test_[^/]*|conftest)\.py$|\.(pyc|pyo|so|orig|rej|swp)$|~$"
)
SDIST_OWN = {"PKG-INFO", "LICENSE", ".gitignore"}
"""Files that the builder adds."""


def wheel_faults(wheel: Path, distribution: str, version: str) -> Iterator[str]:
    """What is wrong with a wheel, each with its file's name."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        folder = f"{distribution.replace('-', '_')}-{version}.dist-info"
        missing = {f"{folder}/{name}" for name in ("METADATA", "RECORD", "WHEEL")} - set(names)
        if missing:
            yield f"{wheel.name}: no {', '.join(sorted(missing))}"
            return
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        found = [*metadata_faults(metadata, distribution, version)]
        found += content_faults(names, distribution, folder)
        found += record_faults(archive, f"{folder}/RECORD")
        if f"{folder}/entry_points.txt" in names:
            text = archive.read(f"{folder}/entry_points.txt").decode()
            found += entry_point_faults(text, names)
    yield from (f"{wheel.name}: {fault}" for fault in found)


def metadata_faults(metadata: Message, distribution: str, version: str) -> Iterator[str]:
    """What is wrong with the metadata."""
    facts = {
        "Name": distribution,
        "Version": version,
        "Requires-Python": ">=3.10",
        "License-Expression": "Apache-2.0",
        "Description-Content-Type": "text/markdown",
    }
    for key, value in facts.items():
        if metadata[key] != value:
            yield f"{key} is {metadata[key]!r}, must be {value!r}"
    if not metadata["Summary"]:
        yield "Summary is empty"
    if len(str(metadata.get_payload()).strip()) < 40:
        yield "the README is not in it"
    for line in metadata.get_all("Requires-Dist", []):
        name = re.split(r"[^\w.-]", line)[0]
        if name.startswith("pegboard") and not line.startswith(f"{name}=={version}"):
            yield f"requires {line!r}, must be {name}=={version}"
        if " @ " in line:
            yield f"requires {line!r}, which no index takes"


def content_faults(names: list[str], distribution: str, folder: str) -> Iterator[str]:
    """Files that do not belong into a wheel, and those that lack."""
    package = "pegboard" if distribution == "pegboard-core" else distribution.replace("-", "_")
    inside = [name for name in names if not name.startswith(f"{folder}/")]
    yield from (f"stray file {name}" for name in inside if STRAY.search(name))
    if distribution == "pegboard":
        yield from (f"the metapackage holds {name}" for name in inside)
        return
    yield from (f"{name} is not in {package}/" for name in inside if _top(name) != package)
    for name in ("__init__.py", "py.typed"):
        if f"{package}/{name}" not in names:
            yield f"{package}/{name} is missing"


def _top(name: str) -> str:
    return name.partition("/")[0]


def record_faults(archive: zipfile.ZipFile, record: str) -> Iterator[str]:
    """Whether RECORD lists all files with their digests."""
    rows = {row[0]: row[1] for row in csv.reader(archive.read(record).decode().splitlines())}
    if set(rows) != set(archive.namelist()):
        yield f"RECORD and content differ in {sorted(set(rows) ^ set(archive.namelist()))}"
        return
    for name, told in rows.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest())
        if name != record and told != f"sha256={digest.decode().rstrip('=')}":
            yield f"RECORD has another digest of {name}"


def entry_point_faults(text: str, names: list[str]) -> Iterator[str]:
    """Entry points whose module is not in the wheel."""
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string(text)
    for group in parser.sections():
        for name, value in parser.items(group):
            module = value.partition(":")[0].strip().replace(".", "/")
            if f"{module}.py" not in names and f"{module}/__init__.py" not in names:
                yield f"entry point {group}:{name} names {value!r}, which is not in it"


def sdist_faults(sdist: Path, files: set[Path] | None) -> Iterator[str]:
    """What is wrong with an sdist; `files` are those of its project, relative, if known."""
    with tarfile.open(sdist) as archive:
        entries = archive.getmembers()
    top = sdist.name.removesuffix(".tar.gz")
    for entry in entries:
        path = PurePosixPath(entry.name)
        if path.parts[0] != top or ".." in path.parts or not entry.isfile():
            yield f"{sdist.name}: {entry.name} is no file in {top}/"
            continue
        inner = Path(*path.parts[1:])
        if files is not None and inner not in files and str(inner) not in SDIST_OWN:
            yield f"{sdist.name}: stray file {inner}"
    names = {PurePosixPath(entry.name).name for entry in entries}
    for name in ("PKG-INFO", "README.md", "pyproject.toml"):
        if name not in names:
            yield f"{sdist.name}: no {name}"
