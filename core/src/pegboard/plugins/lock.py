"""Locks: a file that says which plugins run here, byte for byte.

``pegboard plugins lock`` writes one, ``pegboard plugins verify`` and the engine option
``plugins_lock`` compare. A lock has the core's version and, of each plugin that the allowlist
admits, id, group, distribution, version and the SHA-256 of every file of its distribution. What a
plugin depends on is not part of it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from pegboard.__about__ import __version__
from pegboard.errors import ConfigError, PluginError
from pegboard.plugins.admission import Admission
from pegboard.plugins.first_party import read_first_party
from pegboard.plugins.installed import EDITABLE, Installed, find_installed
from pegboard.plugins.record import Candidate

__all__ = [
    "DEFAULT_FILE",
    "Lock",
    "LockedPlugin",
    "allowlist_hint",
    "differences",
    "enforce_lock",
    "left_out",
    "make_lock",
]

DEFAULT_FILE = "pegboard-plugins.lock"
FORMAT = 1
_TOLD = 10
"""Differences that an error lists; ``pegboard plugins verify`` lists all."""


class LockedPlugin(NamedTuple):
    """One plugin of a lock."""

    id: str
    group: str
    distribution: str
    version: str

    def __str__(self) -> str:
        return f"{self.group.rpartition('.')[2]}:{self.id} of {self.distribution} {self.version}"


@attrs.frozen
class Lock:
    """What a lock file holds."""

    core: str
    """Version of the core."""
    plugins: tuple[LockedPlugin, ...]
    files: Mapping[str, Mapping[str, str]]
    """SHA-256 by distribution and by name of the file, relative to the folder of installation."""

    def write(self, path: str) -> None:
        """Write the file, whole or not at all. Raises `ConfigError` if that cannot be done."""
        content = {
            "format": FORMAT,
            "core": self.core,
            "plugins": [plugin._asdict() for plugin in self.plugins],
            "files": {name: dict(hashes) for name, hashes in self.files.items()},
        }
        if os.path.isdir(path):
            raise ConfigError(f"plugin lock {path!r} cannot be written: it is a folder, not a file")
        draft = f"{path}.{os.getpid()}"
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(json.dumps(content, indent=1) + "\n")
            os.replace(draft, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise ConfigError(f"plugin lock {path!r} cannot be written: {error}") from error

    @classmethod
    def read(cls, path: str) -> Lock:
        """Read a file that `write` wrote. Raises `ConfigError` if it is none."""
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"plugins_lock={path!r} cannot be read: {error}; 'pegboard plugins lock' writes one"
            ) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ConfigError(f"plugins_lock={path!r} is no plugin lock of format {FORMAT}")
        try:
            return cls._from_content(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"plugins_lock={path!r} is damaged: {type(error).__name__}: {error}; write a "
                "new one with 'pegboard plugins lock'"
            ) from error

    @classmethod
    def _from_content(cls, content: Mapping[str, Any]) -> Lock:
        plugins = tuple(LockedPlugin(**fields) for fields in content["plugins"])
        files = {name: dict(hashes) for name, hashes in content["files"].items()}
        texts = [content["core"], *(text for plugin in plugins for text in plugin)]
        texts += [text for hashes in files.values() for pair in hashes.items() for text in pair]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("a value is not a string")
        absent = {plugin.distribution for plugin in plugins} - files.keys()
        if absent:
            raise ValueError(f"it has no files of {', '.join(sorted(absent))}")
        return cls(content["core"], plugins, files)


def make_lock(admitted: Sequence[Candidate], search_path: Sequence[str] | None = None) -> Lock:
    """The lock of what is installed and admitted.

    Raises `PluginError` naming each distribution that cannot be locked: an editable install, one
    without a list of files, one whose files are not all there, one that another hides.
    """
    modules = _modules(admitted)
    groups = {candidate.group for candidate in admitted}
    installed = find_installed(modules.keys(), search_path, groups)
    files = {name: installed[name].hashes(search_path=search_path) for name in sorted(installed)}
    problems: dict[str, list[str]] = defaultdict(list)
    for name, one in sorted(installed.items()):
        for problem in _problems(one, modules[name], files[name]):
            problems[problem].append(f"{name} {one.version}")
    if problems:
        told = "; ".join(f"{', '.join(who)}: {problem}" for problem, who in problems.items())
        ways = "".join(f". {way}" for way in _ways(problems))
        raise PluginError(f"plugins cannot be locked: {told}{ways}")
    return Lock(__version__, tuple(map(_locked, admitted)), files)


def _ways(problems: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What to do about installations that cannot be locked."""
    editable = [who.split()[0] for who in problems.get(EDITABLE, ())]
    if editable:
        yield (
            "Of editable installs build wheels and install those: 'make dist' in Pegboard's "
            "sources, or 'pip wheel --no-deps --wheel-dir dist FOLDER' with each source folder; "
            "then 'pip install --no-deps --force-reinstall --no-index --find-links dist "
            f"{' '.join(editable)}'"
        )
    names = {
        one.split()[0] for problem, who in problems.items() if problem != EDITABLE for one in who
    }
    if names:
        yield f"Install {', '.join(sorted(names))} again, with 'pip install --force-reinstall'"


def enforce_lock(path: str, admission: Admission, search_path: Sequence[str] | None = None) -> None:
    """Raise `PluginError` unless what would be imported is what the lock at `path` says."""
    lock = Lock.read(path)
    found = list(differences(lock, admission.admitted, search_path))
    if not found:
        return
    told = "; ".join(found[:_TOLD])
    more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    way = allowlist_hint(lock, found, admission) or (
        "Install what was locked, or look at the differences and write a new lock with 'pegboard "
        "plugins lock'"
    )
    raise PluginError(f"installed plugins differ from plugins_lock={path!r}: {told}{more}. {way}")


def differences(
    lock: Lock, admitted: Sequence[Candidate], search_path: Sequence[str] | None = None
) -> Iterator[str]:
    """Everything in which the installation differs from the lock, one phrase each.

    A plugin of the lock that the allowlist leaves out is no difference, but its files must be
    there.
    """
    if lock.core != __version__:
        yield f"pegboard-core {lock.core} is locked, {__version__} is installed"
    locked = set(lock.plugins)
    for plugin in map(_locked, admitted):
        if plugin not in locked:
            yield f"plugin {plugin} is not in the lock"
    modules = _modules(admitted)
    groups = {c.group for c in admitted} | {plugin.group for plugin in locked}
    installed = find_installed({*lock.files, *modules}, search_path, groups)
    for name, hashes in sorted(lock.files.items()):
        if name not in installed:
            yield f"{name} is locked and not installed"
            continue
        yield from _file_differences(installed[name], hashes, modules.get(name, []), search_path)


def allowlist_hint(lock: Lock, found: Sequence[str], admission: Admission) -> str:
    """What to say where nothing differs but what may load: the value of the allowlist that mends
    it. Empty where more differs."""
    locked = set(lock.plugins)
    further = [c for c in admission.admitted if _locked(c) not in locked]
    if not further or len(further) < len(found):
        return ""
    own = {f.distribution for f in read_first_party()}
    value = admission.allowlist.value_without(further, admission.found.candidates, own)
    return (
        f"What is locked is as it was, but more may load ({admission.allowlist.setting}). To load "
        f"no more than that, set {admission.allowlist.typed(value)}; or write a new lock with "
        "'pegboard plugins lock'"
    )


def left_out(lock: Lock, admission: Admission) -> list[Candidate]:
    """Plugins of the lock that are installed and that the allowlist keeps from loading."""
    locked = set(lock.plugins)
    admitted = set(admission.admitted)
    return [c for c in admission.found.candidates if _locked(c) in locked and c not in admitted]


def _file_differences(
    one: Installed,
    locked: Mapping[str, str],
    modules: Sequence[str],
    search_path: Sequence[str] | None,
) -> Iterator[str]:
    who = f"{one.name} {one.version}"
    problem = one.problem()
    if problem:
        yield f"{who}: {problem}"
        return
    found = one.hashes(locked, search_path)
    for name in sorted({*locked, *found}):
        if name not in found:
            yield f"{who}: file {name} was removed"
        elif name not in locked:
            yield f"{who}: file {name} was added"
        elif found[name] != locked[name]:
            yield f"{who}: file {name} was changed"
    yield from (f"{who}: {text}" for text in _misplaced(one, modules, locked))


def _problems(one: Installed, modules: Sequence[str], files: Mapping[str, str]) -> Iterator[str]:
    problem = one.problem()
    if problem:
        yield problem
        return
    missing = one.missing()
    if missing:
        yield f"not complete, without {', '.join(missing)}"
    yield from _misplaced(one, modules, files)


def _misplaced(one: Installed, modules: Sequence[str], files: Mapping[str, str]) -> Iterator[str]:
    for module, origin in one.misplaced(modules, files):
        yield f"module {module} would be imported from {origin}, which is no file of it"


def _modules(candidates: Sequence[Candidate]) -> dict[str, list[str]]:
    """Modules of the entry points by distribution."""
    modules = defaultdict(list)
    for candidate in candidates:
        modules[candidate.distribution].append(candidate.value.partition(":")[0])
    return dict(modules)


def _locked(candidate: Candidate) -> LockedPlugin:
    return LockedPlugin(candidate.id, candidate.group, candidate.distribution, candidate.version)
