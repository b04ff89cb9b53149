"""The allowlist: which plugins may load. It acts before any import.

The variable is ``VLLM_PLUGINS``. Unset: all load. Empty: none. Otherwise a comma list; each entry
is one of

* an entry-point name (``llama``) or a distribution name in any spelling (``Pegboard_Model.Llama``),
* ``group:name`` with the short or the full group (``models:llama``, ``pegboard.models:llama``),
* either of these with ``*``, ``?`` or ``[...]`` (matched as text),
* ``@first-party``: exactly the distributions that this release lists as its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

import attrs

from pegboard.plugins.discover import distribution_name
from pegboard.plugins.nearest import nearest
from pegboard.plugins.record import Candidate, normal_form
from pegboard.plugins.scan import scan

__all__ = ["FIRST_PARTY", "VARIABLE", "Allowlist"]

VARIABLE = "VLLM_PLUGINS"
FIRST_PARTY = "@first-party"


@attrs.frozen
class Allowlist:
    """A parsed allowlist. `value` is the text of the variable, None where it is not set."""

    value: str | None
    entries: tuple[str, ...]
    first_party: frozenset[str] = frozenset()
    """Distributions that ``@first-party`` stands for, in normal form."""

    @classmethod
    def parse(cls, value: str | None, first_party: Iterable[str] = ()) -> Allowlist:
        """Split the variable's text; spaces around entries and empty entries do not count."""
        entries = tuple(filter(None, (part.strip() for part in (value or "").split(","))))
        return cls(value, entries, frozenset(map(normal_form, first_party)))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], first_party: Iterable[str] = ()) -> Allowlist:
        """Read the variable."""
        return cls.parse(environ.get(VARIABLE), first_party)

    @property
    def setting(self) -> str:
        """The variable with its value, for messages."""
        return f"{VARIABLE} is not set" if self.value is None else f"{VARIABLE}={self.value!r}"

    def admits(self, candidate: Candidate) -> bool:
        """Whether this plugin may load."""
        return self.value is None or any(self.matches(e, candidate) for e in self.entries)

    def matches(self, entry: str, candidate: Candidate) -> bool:
        """Whether one entry names this plugin."""
        if entry == FIRST_PARTY:
            return candidate.distribution in self.first_party
        if _same(entry, candidate.id) or _same(normal_form(entry), candidate.distribution):
            return True
        group, colon, name = (part.strip() for part in entry.partition(":"))
        groups = (candidate.group, candidate.short_group)
        return bool(colon) and _same(name, candidate.id) and any(_same(group, g) for g in groups)

    def admits_distribution(self, distribution: str) -> bool:
        """Whether an entry names this distribution itself, whatever entry points it has."""
        if self.value is None:
            return True
        if FIRST_PARTY in self.entries and distribution in self.first_party:
            return True
        return any(_same(normal_form(entry), distribution) for entry in self.entries)

    def stranger_notices(self, candidates: Sequence[Candidate]) -> list[str]:
        """One notice for each glob that admits distributions which are not first-party."""
        notices = []
        for entry in filter(_is_glob, self.entries):
            matched = {c.distribution for c in candidates if self.matches(entry, c)}
            strangers = sorted(matched - self.first_party)
            if strangers:
                notices.append(
                    f"{VARIABLE} entry {entry!r} also admits {', '.join(strangers)}, not "
                    "first-party; "
                    f"list plugins by name or use {FIRST_PARTY!r} to admit fewer"
                )
        return notices

    def unmatched_notices(
        self, candidates: Sequence[Candidate], search_path: Sequence[str] | None = None
    ) -> list[str]:
        """One notice, with the nearest match, for each entry that names nothing installed."""
        suspects = [e for e in self.entries if not any(self.matches(e, c) for c in candidates)]
        if not suspects:
            return []
        installed = set(filter(None, map(distribution_name, scan(search_path))))
        return [
            _unmatched(entry, candidates)
            for entry in suspects
            if not any(_same(normal_form(entry), name) for name in installed)
        ]


def _is_glob(entry: str) -> bool:
    return any(character in entry for character in "*?[")


def _same(pattern: str, text: str) -> bool:
    return pattern == text or (_is_glob(pattern) and fnmatchcase(text, pattern))


def _unmatched(entry: str, candidates: Sequence[Candidate]) -> str:
    names = {text for c in candidates for text in (c.id, c.distribution, c.qualified)}
    near = nearest(entry, names | {FIRST_PARTY})
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{VARIABLE} entry {entry!r} matches no installed plugin{hint}"
