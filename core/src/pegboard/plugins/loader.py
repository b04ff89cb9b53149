"""Loading: from what is installed to a `Board`, one plugin at a time."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from pegboard.__about__ import __version__
from pegboard.api.context import PluginContext, ProcessRole
from pegboard.api.descriptor import Descriptor
from pegboard.api.levels import API_LEVELS
from pegboard.errors import ConfigError, DuplicateError, PegboardError, PluginError
from pegboard.plugins.allowlist import VARIABLE, Allowlist
from pegboard.plugins.board import Board
from pegboard.plugins.builtin import core_descriptors
from pegboard.plugins.discover import Discovery, discover
from pegboard.plugins.first_party import FirstParty, read_first_party
from pegboard.plugins.levels import IncompatibleError, check_levels, declared_levels
from pegboard.plugins.policy import USUAL, LoadPolicy
from pegboard.plugins.record import (
    CORE_DISTRIBUTION,
    Candidate,
    PluginRecord,
    PluginState,
    Registration,
)
from pegboard.plugins.registry import ClashError, Entry, Provenance, Registry
from pegboard.plugins.settings import SettingsError, check_plugin_ids

__all__ = ["build_board", "load_plugins"]

_REMEDY = f"uninstall one of them or leave one out with {VARIABLE}"


def load_plugins(
    *,
    environ: Mapping[str, str] | None = None,
    role: ProcessRole = "front",
    policy: LoadPolicy = USUAL,
    extra: Iterable[tuple[str, Descriptor]] = (),
    search_path: Sequence[str] | None = None,
) -> Board:
    """Load every admitted plugin and return the board; the front end logs its notices.

    `environ` (default ``os.environ``) holds the allowlist. Where `policy` is strict, a failure
    raises `PluginError` or `ConfigError`. `extra` are (surface, descriptor) pairs to register as
    the core's own, for tests and embedding programs. `search_path` replaces ``sys.path`` in the
    search for distributions.
    """
    board = build_board(
        environ=environ, role=role, policy=policy, extra=extra, search_path=search_path
    )
    if role == "front" and board.notices:
        import logging  # a board without notices has no use for it

        for notice in board.notices:
            logging.getLogger("pegboard.plugins").warning("%s", notice)
    return board


def build_board(
    *,
    environ: Mapping[str, str] | None = None,
    role: ProcessRole = "front",
    policy: LoadPolicy = USUAL,
    extra: Iterable[tuple[str, Descriptor]] = (),
    search_path: Sequence[str] | None = None,
    surfaces: Collection[str] | None = None,
) -> Board:
    """`load_plugins` without a log.

    With `surfaces`, plugins that declare none of them are left out unimported.
    """
    environ = os.environ if environ is None else environ
    listed = read_first_party() if VARIABLE in environ else ()
    allowlist = Allowlist.from_environ(environ, (f.distribution for f in listed))
    found = discover(search_path)
    unmatched = allowlist.unmatched_notices(found.candidates, search_path)
    if policy.strict and unmatched:
        raise ConfigError(". ".join(unmatched))
    check_plugin_ids(policy.plugin_config, (c.id for c in found.candidates))
    loader = _Loader(role, policy, allowlist, surfaces)
    loader.register_core([*core_descriptors(), *extra])
    loader.load_all(found.candidates)
    if policy.strict:
        loader.raise_failures()
    notices = (*unmatched, *allowlist.stranger_notices(found.candidates), *found.notices)
    return loader.board(notices, read_first_party, found, search_path)


class _Loader:
    """The state of one loading; gone when the board exists."""

    def __init__(
        self,
        role: ProcessRole,
        policy: LoadPolicy,
        allowlist: Allowlist,
        surfaces: Collection[str] | None,
    ) -> None:
        self._role = role
        self._policy = policy
        self._settings: dict[Provenance, Any] = {}
        self._allowlist = allowlist
        self._surfaces = surfaces
        self._registries: dict[str, Registry[Any]] = {s: Registry(s) for s in sorted(API_LEVELS)}
        self._contested: dict[tuple[str, str], str] = {}
        self._records: list[PluginRecord] = []
        self._errors: list[tuple[PluginRecord, BaseException]] = []
        self._core = PluginRecord(
            "core",
            "",
            "pegboard",
            CORE_DISTRIBUTION,
            __version__,
            "ready",
            surfaces=tuple(API_LEVELS),
        )

    def register_core(self, pairs: Sequence[tuple[str, Descriptor]]) -> None:
        source = Provenance(CORE_DISTRIBUTION, __version__, "core", "")
        self._core = attrs.evolve(self._core, registered=self._register(pairs, source))

    def load_all(self, candidates: Sequence[Candidate]) -> None:
        admitted = [c for c in candidates if self._allowlist.admits(c)]
        twice = _used_twice(admitted)
        for candidate in candidates:
            if candidate not in admitted:
                self._block(candidate)
            elif candidate.id in twice:
                self._fail(candidate, (), DuplicateError(_name_clash(twice[candidate.id])))
            else:
                self._load(candidate)

    def raise_failures(self) -> None:
        """Strict mode: one error for all failures."""
        if self._errors:
            listing = "; ".join(
                f"{record} is {record.state}: {record.reason}" for record, _ in self._errors
            )
            raise PluginError(f"strict mode refuses to start: {listing}") from self._errors[0][1]

    def board(
        self,
        notices: Iterable[str],
        first_party: Callable[[], Sequence[FirstParty]],
        found: Discovery,
        search_path: Sequence[str] | None,
    ) -> Board:
        failures = (f"plugin {r} is {r.state}: {r.reason}" for r, _ in self._errors)
        notes = (f"plugin {r}: {note}" for r in self._records for note in r.notes)
        return Board(
            plugins=tuple(self._records),
            core=self._core,
            allowlist=self._allowlist,
            notices=(*notices, *failures, *notes),
            registries=self._registries,
            contested=self._contested,
            settings=self._settings,
            first_party=first_party,
            candidates=found.candidates,
            search_path=search_path,
        )

    def _block(self, candidate: Candidate) -> None:
        """Record a plugin that the allowlist leaves out;

        its source is looked at, never imported.
        """
        try:
            surfaces = tuple(declared_levels(candidate.value))
        except Exception:  # it is not going to load: nothing about it may stop the others
            surfaces = ()
        reason = f"{self._allowlist.setting} has no entry for it; add {candidate.id!r}"
        self._records.append(_record(candidate, "blocked", reason, surfaces))

    def _load(self, candidate: Candidate) -> None:
        declared: Mapping[str, int] = {}
        try:
            _check_value(candidate)
            declared = declared_levels(candidate.value)
            if self._surfaces is not None and not set(self._surfaces) & set(declared):
                return
            notes = check_levels(candidate, declared, __version__)
            self._import(candidate, declared, notes)
        except KeyboardInterrupt:
            raise
        except SettingsError as error:
            if candidate.id in self._policy.plugin_config:
                raise  # the operator's mistake, not the plugin's
            self._fail(candidate, tuple(declared), error)
        except BaseException as error:
            self._fail(candidate, tuple(declared), error)

    def _import(
        self, candidate: Candidate, declared: Mapping[str, int], notes: tuple[str, ...]
    ) -> None:
        from pegboard.plugins.collect import collect  # pluggy: only when there is a plugin to ask

        context = PluginContext(
            candidate.id, candidate.distribution, candidate.version, self._role, __version__
        )
        torch_was_here = "torch" in sys.modules
        start = time.perf_counter()
        given = self._policy.plugin_config.get(candidate.id)
        pairs, settings = collect(candidate.value, declared, context, given)
        seconds = time.perf_counter() - start
        if "torch" in sys.modules and not torch_was_here:
            notes = (*notes, "it imports torch at start-up; keep that behind its lazy references")
        source = Provenance(
            candidate.distribution, candidate.version, candidate.id, candidate.group
        )
        registered = self._register(pairs, source)
        self._settings[source] = settings
        record = _record(candidate, "ready", "", tuple(declared))
        self._records.append(
            attrs.evolve(record, registered=registered, import_seconds=seconds, notes=notes)
        )

    def _register(
        self, pairs: Sequence[tuple[str, Descriptor]], source: Provenance
    ) -> tuple[Registration, ...]:
        """Put all pairs on the board, or none of them if a key is taken."""
        by_surface: dict[str, list[Entry[Any]]] = defaultdict(list)
        for surface, descriptor in pairs:
            by_surface[surface].append(Entry(descriptor, source))
        clashes = [
            c for s, entries in by_surface.items() for c in self._registries[s].clashes(entries)
        ]
        if clashes:
            raise ClashError(clashes)
        extended = {s: self._registries[s].extended(entries) for s, entries in by_surface.items()}
        self._registries.update(extended)
        return tuple(Registration(s, d.name, tuple(d.claims())) for s, d in pairs)

    def _fail(self, candidate: Candidate, surfaces: tuple[str, ...], error: BaseException) -> None:
        state: PluginState = "incompatible" if isinstance(error, IncompatibleError) else "failed"
        record = _record(candidate, state, _reason(error), surfaces)
        for clash in error.clashes if isinstance(error, ClashError) else ():
            self._contested[clash.surface, clash.key] = f"{clash}; {_REMEDY}"
        self._records.append(record)
        self._errors.append((record, error))


def _record(
    candidate: Candidate, state: PluginState, reason: str, surfaces: tuple[str, ...]
) -> PluginRecord:
    return PluginRecord(
        id=candidate.id,
        group=candidate.group,
        module=candidate.value,
        distribution=candidate.distribution,
        version=candidate.version,
        state=state,
        reason=reason,
        surfaces=surfaces,
    )


def _used_twice(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Entry-point names that lead to more than one plugin: an id must name one thing."""
    by_id: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_id[candidate.id].append(candidate)
    return {name: users for name, users in by_id.items() if len(users) > 1}


def _name_clash(users: Sequence[Candidate]) -> str:
    return f"the plugin name {users[0].id!r} is used by {' and '.join(map(str, users))}; {_REMEDY}"


def _check_value(candidate: Candidate) -> None:
    if not all(part.isidentifier() for part in candidate.value.split(".")):
        raise PluginError(f"the entry point must name a module, it is {candidate.value!r}")


def _reason(error: BaseException) -> str:
    """One line; for errors that are not ours, with the place where they were raised."""
    text = " ".join(str(error).split())
    if isinstance(error, PegboardError):
        return text
    import traceback  # only failures need it, and start-up must be quick

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"
