"""The allowlist: which plugins may load. It acts before any import.

The variable is ``VLLM_PLUGINS``. Unset: all load. Empty: none. Otherwise a comma list; each entry
is one of

* an entry-point name (``llama``) or a distribution name in any spelling (``Pegboard_Model.Llama``),
* ``group:name`` with the short or the full group (``models:llama``, ``pegboard.models:llama``),
* either of these with ``*``, ``?`` or ``[...]`` (matched as text),
* ``@first-party``: exactly the distributions that this release lists as its own.

The engine option ``no_plugins_except`` is a second list of the same grammar: where it is given, a
plugin must be admitted by both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import attrs

from pegboard.plugins.discover import distribution_name
from pegboard.plugins.nearest import nearest
from pegboard.plugins.record import Candidate, normal_form
from pegboard.plugins.scan import scan

__all__ = ["EXCEPT", "FIRST_PARTY", "VARIABLE", "Allowlist"]

VARIABLE = "VLLM_PLUGINS"
EXCEPT = "no_plugins_except"
FIRST_PARTY = "@first-party"


@attrs.frozen
class Allowlist:
    """A parsed allowlist. `value` is the text of the variable, None where it is not set."""

    value: str | None
    entries: tuple[str, ...]
    first_party: frozenset[str] = frozenset()
    """Distributions that ``@first-party`` stands for, in normal form."""
    name: str = VARIABLE
    """What sets it, for messages."""
    also: Allowlist | None = None
    """A second list, which must admit a plugin too."""

    @classmethod
    def parse(
        cls,
        value: str | None,
        first_party: Iterable[str] = (),
        *,
        name: str = VARIABLE,
        also: Allowlist | None = None,
    ) -> Allowlist:
        """Split the variable's text; spaces around entries and empty entries do not count."""
        entries = tuple(filter(None, (part.strip() for part in (value or "").split(","))))
        return cls(value, entries, frozenset(map(normal_form, first_party)), name, also)

    @classmethod
    def from_environ(
        cls,
        environ: Mapping[str, str],
        first_party: Iterable[str] = (),
        only: str | None = None,
    ) -> Allowlist:
        """Read the variable; `only` is the text of ``no_plugins_except``."""
        own = tuple(first_party)
        also = None if only is None else cls.parse(only, own, name=EXCEPT)
        return cls.parse(environ.get(VARIABLE), own, also=also)

    @property
    def in_force(self) -> tuple[Allowlist, ...]:
        """Of the two lists, those that are set; none: everything is admitted."""
        return tuple(one for one in (self, self.also) if one is not None and one.value is not None)

    @property
    def setting(self) -> str:
        """What is set, with its value, for messages."""
        set_to = (f"{one.name}={one.value!r}" for one in self.in_force)
        return " and ".join(set_to) or f"{VARIABLE} is not set"

    def admits(self, candidate: Candidate) -> bool:
        """Whether this plugin may load."""
        return self.leaving_out(candidate) is None

    def leaving_out(self, candidate: Candidate) -> Allowlist | None:
        """The list that has no entry for this plugin, or for the one that runs it, or None if it
        may load."""
        for one in self.in_force:
            if not any(one.matches(entry, candidate) for entry in one.entries):
                return one
        return None if candidate.adopter is None else self.leaving_out(candidate.adopter)

    def why_left_out(self, candidate: Candidate, shared: Collection[str]) -> str:
        """For a plugin that may not load: which list leaves it out, and what to add to it. An id
        among `shared` is that of several plugins."""
        by = self.leaving_out(candidate)
        assert by is not None, "only what is left out is blocked"
        who, adopter = candidate, candidate.adopter
        if adopter is not None and self.leaving_out(candidate._replace(adopter=None)) is None:
            who = adopter
        what = "it" if who is candidate else f"{who}, which runs it,"
        entry = who.qualified if who.id in shared else who.id
        return (
            f"{by.name}={by.value!r} leaves {what} out: add {entry!r} to it ({by.admitting(entry)})"
        )

    def matches(self, entry: str, candidate: Candidate) -> bool:
        """Whether one entry names this plugin."""
        if entry == FIRST_PARTY:
            return candidate.distribution in self.first_party
        if _same(entry, candidate.id) or _same(normal_form(entry), candidate.distribution):
            return True
        group, colon, name = (part.strip() for part in entry.partition(":"))
        groups = (candidate.group, candidate.short_group)
        return bool(colon) and _same(name, candidate.id) and any(_same(group, g) for g in groups)

    def value_without(
        self,
        left_out: Collection[Candidate],
        candidates: Sequence[Candidate],
        first_party: Collection[str],
    ) -> str:
        """The value of the variable that admits all that is admitted now but for `left_out`.

        `first_party` are the distributions that ``@first-party`` would stand for.
        """
        kept = [c for c in candidates if c not in left_out and self.admits(c)]
        own = [c for c in candidates if c.distribution in first_party]
        whole = bool(own) and all(c in kept for c in own)
        named = [c for c in kept if not (whole and c in own)]
        entries = [self._entry_for(c, candidates) for c in named]
        return ",".join([*([FIRST_PARTY] if whole else []), *entries])

    def admitting(self, entry: str) -> str:
        """The list as one types it, with one more entry; and what else admits a plugin."""
        typed = self.typed(",".join((*self.entries, entry)))
        return typed if self.entries else f"{typed}; where it is not set, all plugins load"

    def typed(self, value: str) -> str:
        """What an operator types to give the list this value."""
        if not re.fullmatch(r"[\w@%+=:,./-]+", value):
            value = f"'{value}'"
        return (
            f"--{EXCEPT.replace('_', '-')} {value}"
            if self.name == EXCEPT
            else f"{self.name}={value}"
        )

    def _entry_for(self, plugin: Candidate, candidates: Sequence[Candidate]) -> str:
        """What names this plugin and no other, as short as can be."""
        for entry in (plugin.id, plugin.qualified):
            if sum(self.matches(entry, c) for c in candidates) == 1:
                return entry
        return plugin.distribution

    def admits_distribution(self, distribution: str) -> bool:
        """Whether entries name this distribution itself, whatever entry points it has."""
        return all(one._names(distribution) for one in self.in_force)

    def _names(self, distribution: str) -> bool:
        if FIRST_PARTY in self.entries and distribution in self.first_party:
            return True
        return any(_same(normal_form(entry), distribution) for entry in self.entries)

    def stranger_notices(self, candidates: Sequence[Candidate]) -> list[str]:
        """One notice for each glob that admits distributions which are not first-party."""
        return [note for one in self.in_force for note in one._stranger_notices(candidates)]

    def _stranger_notices(self, candidates: Sequence[Candidate]) -> Iterator[str]:
        for entry in filter(_is_glob, self.entries):
            matched = {c.distribution for c in candidates if self.matches(entry, c)}
            strangers = sorted(matched - self.first_party)
            if strangers:
                yield (
                    f"{self.name} entry {entry!r} also admits {', '.join(strangers)}, not "
                    "first-party; "
                    f"list plugins by name or use {FIRST_PARTY!r} to admit fewer"
                )

    def unmatched_notices(
        self, candidates: Sequence[Candidate], search_path: Sequence[str] | None = None
    ) -> list[str]:
        """One notice, with the nearest match, for each entry that names nothing installed."""
        suspects = [
            (one.name, entry)
            for one in self.in_force
            for entry in one.entries
            if not any(one.matches(entry, candidate) for candidate in candidates)
        ]
        if not suspects:
            return []
        installed = set(filter(None, map(distribution_name, scan(search_path))))
        return [
            _unmatched(setting, entry, candidates)
            for setting, entry in suspects
            if not any(_same(normal_form(entry), name) for name in installed)
        ]


def _is_glob(entry: str) -> bool:
    return any(character in entry for character in "*?[")


def _same(pattern: str, text: str) -> bool:
    return pattern == text or (_is_glob(pattern) and fnmatchcase(text, pattern))


def _unmatched(setting: str, entry: str, candidates: Sequence[Candidate]) -> str:
    names = {text for c in candidates for text in (c.id, c.distribution, c.qualified)}
    near = nearest(entry, names | {FIRST_PARTY})
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{setting} entry {entry!r} matches no installed plugin{hint}"
