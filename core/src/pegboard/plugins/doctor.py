"""Looking for what is wrong with the installed plugins, in words for whoever runs them.

Nothing of a plugin is imported here but what loading imports; its heavy parts are tried in a
process of their own.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import attrs

from pegboard.plugins.admission import Admission, admit
from pegboard.plugins.board import Board
from pegboard.plugins.discover import distribution_name
from pegboard.plugins.import_check import import_faults
from pegboard.plugins.loader import build_board
from pegboard.plugins.policy import USUAL, LoadPolicy
from pegboard.plugins.record import Candidate
from pegboard.plugins.references import lazy_refs
from pegboard.plugins.requirements import installed_versions, unmet
from pegboard.plugins.scan import Metadata, MetadataFolder, headers, scan

__all__ = ["SLOW_IMPORT", "Check", "Finding", "Report", "examine"]

Check = Literal[
    "allowlist",
    "metadata",
    "entry points",
    "api level",
    "loading",
    "requirements",
    "imports",
    "import time",
]

SLOW_IMPORT = 1.0
"""Seconds; a plugin that takes longer to import and to ask is mentioned."""


@attrs.frozen
class Finding:
    """One thing that is wrong, or odd."""

    severity: Literal["problem", "warning"]
    """A problem keeps something from working; a warning may be meant."""
    check: Check
    """What was looked at."""
    message: str


@attrs.frozen
class Report:
    """What an examination found."""

    plugins: int
    """How many were examined, those that the allowlist leaves out among them."""
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Finding, ...]:
        """Of the findings, those that keep something from working."""
        return tuple(f for f in self.findings if f.severity == "problem")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """The others."""
        return tuple(f for f in self.findings if f.severity == "warning")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "plugins": self.plugins,
            "problems": len(self.problems),
            "warnings": len(self.warnings),
            "findings": [attrs.asdict(finding) for finding in self.findings],
        }


def examine(
    *,
    environ: Mapping[str, str] | None = None,
    policy: LoadPolicy = USUAL,
    search_path: Sequence[str] | None = None,
    timeout: float = 60.0,
) -> Report:
    """Do every check on what `load_plugins` with the same arguments would load.

    `timeout` is the time in seconds that importing one part of a plugin may take.
    """
    environ = os.environ if environ is None else environ
    admission = admit(environ, policy, search_path)
    board = build_board(environ=environ, policy=policy, search_path=search_path)
    findings = [
        *_allowlist(admission, search_path),
        *_metadata(admission, search_path),
        *(Finding("warning", "entry points", stray) for stray in admission.found.strays),
        *_records(board),
        *_requirements(admission.admitted, search_path),
        *_imports(board, timeout),
    ]
    return Report(len(board.plugins), tuple(findings))


def _allowlist(admission: Admission, search_path: Sequence[str] | None) -> Iterator[Finding]:
    candidates, allowlist = admission.found.candidates, admission.allowlist
    for notice in allowlist.unmatched_notices(candidates, search_path):
        yield Finding("problem", "allowlist", notice)
    for notice in allowlist.stranger_notices(candidates):
        yield Finding("warning", "allowlist", notice)


def _metadata(admission: Admission, search_path: Sequence[str] | None) -> Iterator[Finding]:
    """Metadata that cannot be read, and distributions whose entry points others hide."""
    copies = _copies({c.distribution for c in admission.found.candidates}, search_path)
    for notice in admission.found.notices:
        if not any(notice.startswith(f"{name} is on the path twice") for name in copies):
            yield Finding("problem", "metadata", notice)
    for name, there in copies.items():
        first, *others = (f"{copy.place} ({copy.version or 'no version'})" for copy in there)
        alike = len({copy.content for copy in there}) == 1
        yield Finding(
            "warning" if alike else "problem",
            "metadata",
            f"{name} is on the path {len(there)} times: {first} hides {', '.join(others)}; remove "
            "the stale ones",
        )


class _Copy(NamedTuple):
    """The metadata of a distribution."""

    place: str
    version: str
    content: tuple[str, ...]


def _copies(names: set[str], search_path: Sequence[str] | None) -> dict[str, list[_Copy]]:
    """By name, those that are there more than once, in order of the path."""
    found: dict[str, dict[str, _Copy]] = defaultdict(dict)
    for metadata in scan(search_path):
        name = distribution_name(metadata)
        if name is not None and name in names:
            version = headers(metadata).get("version", [""])[0]
            place = _place(metadata)
            copy = _Copy(place, version, (version, *_entry_point_lines(metadata)))
            found[name].setdefault(place, copy)
    return {name: list(there.values()) for name, there in found.items() if len(there) > 1}


def _entry_point_lines(metadata: Metadata) -> list[str]:
    text = metadata.read_text("entry_points.txt") or ""
    return sorted(line.strip() for line in text.splitlines() if line.strip())


def _place(metadata: Metadata) -> str:
    if isinstance(metadata, MetadataFolder):
        return os.path.realpath(metadata.path)
    return os.path.realpath(str(metadata.locate_file("")))


def _records(board: Board) -> Iterator[Finding]:
    for record in board.plugins:
        if record.state == "incompatible":
            yield Finding("problem", "api level", f"{record}: {record.reason}")
        elif record.state == "failed":
            yield Finding("problem", "loading", f"{record}: {record.reason}")
        elif record.state == "shadowed":
            yield Finding("warning", "loading", f"{record}: {record.reason}")
        for note in record.notes:
            yield Finding("warning", "loading", f"{record}: {note}")
        if record.import_seconds > SLOW_IMPORT:
            yield Finding(
                "warning", "import time", f"{record} took {record.import_seconds:.1f} s to load"
            )


def _requirements(
    admitted: Iterable[Candidate], search_path: Sequence[str] | None
) -> Iterator[Finding]:
    versions = installed_versions(search_path)
    seen = {}
    for candidate in admitted:
        seen[f"{candidate.distribution} {candidate.version}"] = candidate.requires
    for who, requires in seen.items():
        for phrase in unmet(requires, versions):
            yield Finding("problem", "requirements", f"{who} {phrase}")


def _imports(board: Board, timeout: float) -> Iterator[Finding]:
    """What the descriptors of plugins refer to, and who refers to it."""
    users: dict[str, str] = {}
    for surface in sorted(board.core.surfaces):
        for entry in board.registry(surface).entries():
            if entry.provenance.group:
                for target in lazy_refs(entry.descriptor):
                    users.setdefault(target, f"{entry.provenance} ({entry.provenance.entry_point})")
    for target, fault in import_faults(list(users), timeout=timeout).items():
        said = fault if target in fault else f"{target!r}: {fault}"
        yield Finding("problem", "imports", f"{users[target]}: {said}")
