"""Whether what a distribution requires is installed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from pegboard.__about__ import __version__
from pegboard.plugins.record import CORE_DISTRIBUTION, normal_form
from pegboard.plugins.scan import headers, scan

__all__ = ["installed_versions", "unmet"]


def installed_versions(search_path: Sequence[str] | None = None) -> dict[str, str]:
    """Version by name in normal form, of the first on the path; of the core, the one that runs."""
    versions = {CORE_DISTRIBUTION: __version__}
    for metadata in scan(search_path):
        fields = headers(metadata)
        if "name" in fields and "version" in fields:
            versions.setdefault(normal_form(fields["name"][0]), fields["version"][0])
    return versions


def unmet(requires: Iterable[str], versions: Mapping[str, str]) -> Iterator[str]:
    """What is wrong, a phrase for each ``Requires-Dist`` line that does not hold; those of extras
    and of other systems are passed over."""
    for line in requires:
        try:
            wanted = Requirement(line)
        except InvalidRequirement as error:
            yield f"its requirement {line!r} cannot be read: {' '.join(str(error).split())}"
            continue
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        have = versions.get(normal_form(wanted.name))
        if have is None:
            yield f"needs {wanted.name}{wanted.specifier}, which is not installed"
        elif not _holds(wanted, have):
            yield f"needs {wanted.name}{wanted.specifier}, {have} is installed"


def _holds(wanted: Requirement, version: str) -> bool:
    try:
        return wanted.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return not wanted.specifier
