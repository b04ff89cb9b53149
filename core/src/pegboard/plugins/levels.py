"""The API level check: read from the plugin's source, before anything of it is imported.

A plugin declares, in the module that its entry point names, the literal ``PEGBOARD_API = {"model":
0}``: each surface it registers into and the level it was written for. The core runs plugins of its
own level N and of N-1. Level 0 may change with any release, so there the distribution must also pin
the core's exact version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pegboard.api.levels import API_LEVELS
from pegboard.plugins.declared import LEVELS, IncompatibleError, levels_that_run
from pegboard.plugins.nearest import nearest
from pegboard.plugins.record import CORE_DISTRIBUTION, Candidate, normal_form

__all__ = ["IncompatibleError", "check_levels"]


def check_levels(
    candidate: Candidate,
    declared: Mapping[str, int],
    core_version: str,
    supported: Mapping[str, int] = API_LEVELS,
) -> tuple[str, ...]:
    """Check a declaration against the core; returns warning notes.

    Raises `IncompatibleError` with the remedy: which of the two distributions to change.
    """
    for surface, level in declared.items():
        _check_level(candidate, surface, level, supported)
    older = tuple(
        f"it is written for level {level} of the {surface!r} API, this core has {level + 1} and "
        f"the next one will not run it: ask for a newer {candidate.distribution}"
        for surface, level in declared.items()
        if level < supported[surface]
    )
    return (*older, *(_check_pin(candidate, core_version) if 0 in declared.values() else ()))


def _check_level(
    candidate: Candidate, surface: str, level: int, supported: Mapping[str, int]
) -> None:
    if surface not in supported:
        near = nearest(surface, supported)
        hint = f" (nearest: {near!r})" if near else ""
        raise IncompatibleError(
            f"{LEVELS} names the surface {surface!r}{hint}, which this core does not have; it has "
            f"{', '.join(sorted(supported))}. Correct the name or upgrade {CORE_DISTRIBUTION}"
        )
    ours = supported[surface]
    if level > ours:
        raise IncompatibleError(
            f"it needs level {level} of the {surface!r} API, this core runs "
            f"{levels_that_run(surface, supported)}: upgrade {CORE_DISTRIBUTION}, or install an "
            f"older {candidate.distribution}"
        )
    if level < ours - 1:
        raise IncompatibleError(
            f"it is written for level {level} of the {surface!r} API, this core runs "
            f"{levels_that_run(surface, supported)}: upgrade {candidate.distribution}"
        )


def _check_pin(candidate: Candidate, core_version: str) -> tuple[str, ...]:
    pins = [pin for line in candidate.requires if (pin := _core_pin(line)) is not None]
    wrong = [pin for pin in pins if not _same_version(pin, core_version)]
    if wrong:
        raise IncompatibleError(
            f"it was made for {CORE_DISTRIBUTION} {wrong[0]} exactly (API level 0), this is "
            f"{core_version}: "
            f"install the {candidate.distribution} that belongs to it"
        )
    if pins:
        return ()
    return (
        f"level 0 of the API may change with every release, but {candidate.distribution} does not "
        "require "
        f"{CORE_DISTRIBUTION}=={core_version}",
    )


def _core_pin(requirement: str) -> str | None:
    """The version in an unconditional ``pegboard-core==X``, else None."""
    if "core" not in requirement.lower():  # most are for something else
        return None
    text, _, marker = requirement.partition(";")
    match = re.match(
        r"\s*([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?\s*==\s*([^\s,)*=]+)\s*\)?\s*$", text
    )
    if match is None or normal_form(match[1]) != CORE_DISTRIBUTION or "extra" in marker:
        return None
    return match[2]


def _same_version(one: str, other: str) -> bool:
    """Equality as ``==`` means it: local part, letter case and trailing zeros do not count."""

    def plain(version: str) -> str:
        return re.sub(r"(\.0)+$", "", version.lower().partition("+")[0])

    return one == other or plain(one) == plain(other)
