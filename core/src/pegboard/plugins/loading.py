"""One loading: plugins are read, ordered, imported and registered, one at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

import attrs

from pegboard.__about__ import __version__
from pegboard.api.context import PluginContext, ProcessRole
from pegboard.api.descriptor import Descriptor
from pegboard.api.foreign import NotAdoptedError
from pegboard.api.levels import API_LEVELS
from pegboard.api.metrics import MetricSet, PluginMetrics
from pegboard.errors import DuplicateError, PluginError
from pegboard.plugins.accepting import Accepted, accept, accept_first
from pegboard.plugins.allowlist import Allowlist
from pegboard.plugins.board import Board
from pegboard.plugins.clashes import Remedies
from pegboard.plugins.conduct import Conduct
from pegboard.plugins.declared import check_override, read_declaration
from pegboard.plugins.discover import Discovery
from pegboard.plugins.failures import (
    check_value,
    name_clash,
    notice_of,
    reason_of,
    used_twice,
)
from pegboard.plugins.first_party import FirstParty
from pegboard.plugins.levels import IncompatibleError, check_levels
from pegboard.plugins.modules import forget_module
from pegboard.plugins.order import load_order
from pegboard.plugins.plan import PluginPlan
from pegboard.plugins.policy import LoadPolicy
from pegboard.plugins.record import (
    CORE_DISTRIBUTION,
    Candidate,
    PluginRecord,
    PluginState,
)
from pegboard.plugins.registry import ClashError, Provenance, Registry
from pegboard.plugins.settings import SettingsError
from pegboard.plugins.shadow import shadowed

__all__ = ["Loader"]


class _Waiting(NamedTuple):
    """A plugin that may load, and what it declares."""

    candidate: Candidate
    levels: Mapping[str, int]
    plain: ModuleSpec | None
    order: tuple[Sequence[str], Sequence[str]]
    override: Mapping[str, frozenset[str]]
    processes: tuple[ProcessRole, ...]
    notes: tuple[str, ...]


class Loader:
    """The state of one loading; gone when the board exists."""

    def __init__(
        self,
        role: ProcessRole | Collection[ProcessRole],
        policy: LoadPolicy,
        allowlist: Allowlist,
        plan: PluginPlan | None,
        surfaces: Collection[str] | None,
        first_party: Callable[[], Sequence[FirstParty]],
    ) -> None:
        self._roles = {role} if isinstance(role, str) else set(role)
        self._policy = policy
        self._settings: dict[Provenance, Any] = {}
        self._allowlist = allowlist
        self._plan = plan
        self._conduct = Conduct(policy.unsafe)
        self._metrics = MetricSet()
        self._surfaces = surfaces
        self._registries: dict[str, Registry[Any]] = {s: Registry(s) for s in sorted(API_LEVELS)}
        self._left_alone: dict[str, None] = {}
        """Why plugins of other programs are not run; each reason is told once."""
        self._contested: dict[tuple[str, str], str] = {}
        self._records: list[PluginRecord] = []
        """Those that were loaded in their order, among others."""
        self._errors: list[tuple[str, BaseException]] = []
        """Each with what is told of it."""
        self._remedies = Remedies(allowlist, first_party)
        self._shared: set[str] = set()
        """Ids that more than one has."""
        self._found: dict[Provenance, Candidate] = {}
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
        accepted = accept(self._registries, pairs, source, {})
        self._registries.update(accepted.registries)
        self._core = attrs.evolve(self._core, registered=accepted.registered)

    def load_all(self, candidates: Sequence[Candidate]) -> None:
        self._remedies.candidates = candidates
        self._shared = set(used_twice(candidates))
        admitted = [c for c in candidates if self._allowlist.admits(c)]
        if self._plan is not None:
            self._plan.check_found(admitted)
        twice = used_twice(admitted)
        waiting: list[_Waiting] = []
        for candidate in candidates:
            if candidate not in admitted:
                self._block(candidate)
            elif self._planned_to_fail(candidate):
                continue
            elif candidate.id in twice:
                self._fail(candidate, (), self._twins(twice[candidate.id]))
            else:
                waiting += self._read(candidate)
        for one in self._ordered(waiting):
            if self._roles & set(one.processes):
                self._load(one)
            else:
                self._leave_unused(one)
        if self._plan is not None:
            self._plan.check_loaded(self._records)

    def _twins(self, users: Sequence[Candidate]) -> DuplicateError:
        return DuplicateError(f"{name_clash(users)}; {self._remedies.of_twins(users)}")

    def raise_failures(self) -> None:
        """Strict mode: one error for all failures."""
        if self._errors:
            listing = "; ".join(notice for notice, _ in self._errors)
            raise PluginError(f"strict mode refuses to start: {listing}") from self._errors[0][1]

    def board(
        self,
        notices: Iterable[str],
        first_party: Callable[[], Sequence[FirstParty]],
        found: Discovery,
        search_path: Sequence[str] | None,
    ) -> Board:
        records = [shadowed(record, self._registries) for record in self._records]
        config = self._policy.plugin_config
        plan = PluginPlan.of(records, self._allowlist.value, config, search_path)
        records.sort(key=lambda record: (record.group, record.id, record.distribution))
        failures = (f"plugin {notice}" for notice, _ in self._errors)
        notes = (f"plugin {r}: {note}" for r in records for note in r.notes)
        return Board(
            plugins=tuple(records),
            plan=plan,
            core=self._core,
            allowlist=self._allowlist,
            notices=(*notices, *self._left_alone, *failures, *notes),
            registries=self._registries,
            contested=self._contested,
            settings=self._settings,
            conduct=self._conduct,
            metrics=self._metrics,
            first_party=first_party,
            candidates=found.candidates,
            search_path=search_path,
        )

    def _block(self, candidate: Candidate) -> None:
        """Record a plugin that the allowlist leaves out;

        its source is looked at, never imported.
        """
        try:
            surfaces = tuple(read_declaration((candidate.adopter or candidate).value).levels)
        except Exception:  # it is not going to load: nothing about it may stop the others
            surfaces = ()
        reason = self._allowlist.why_left_out(candidate, self._shared)
        self._records.append(_record(candidate, "blocked", reason, surfaces))

    def _planned_to_fail(self, candidate: Candidate) -> bool:
        """Whether the plan says that it did not load; it is recorded so."""
        state = None if self._plan is None else self._plan.state_of(candidate)
        if state not in ("failed", "incompatible"):
            return False
        reason = "it was so in the process that started this one"
        self._records.append(_record(candidate, state, reason, ()))
        return True

    def _read(self, candidate: Candidate) -> list[_Waiting]:
        """What a plugin declares, nothing of it imported; empty if it cannot or shall not load."""
        if candidate.adopter is not None:
            return self._read_adopted(candidate, candidate.adopter)
        levels: Mapping[str, int] = {}
        try:
            check_value(candidate)
            declared = read_declaration(candidate.value)
            levels = declared.levels
            if self._surfaces is not None and not set(self._surfaces) & set(levels):
                return []
            notes = check_levels(candidate, levels, __version__)
            override = declared.override()
            check_override(override, self._core.registered)
            order, processes = declared.order(), declared.processes()
            plain = declared.spec if declared.plain else None
            return [_Waiting(candidate, levels, plain, order, override, processes, notes)]
        except Exception as error:
            self._fail(candidate, tuple(levels), error)
            return []

    def _read_adopted(self, candidate: Candidate, adopter: Candidate) -> list[_Waiting]:
        """What holds for a plugin of another program is what its adopter declares; whether that
        one loads is seen when its turn is over."""
        try:
            declared = read_declaration(adopter.value)
            if self._surfaces is not None and not set(self._surfaces) & set(declared.levels):
                return []
            order = (), (adopter.id,)
            processes = declared.processes()
            return [_Waiting(candidate, declared.levels, None, order, {}, processes, ())]
        except Exception:
            reason = f"{adopter}, which runs plugins of this group, cannot be loaded"
            self._fail(candidate, (), PluginError(reason))
            return []

    def _leave_unused(self, waiting: _Waiting) -> None:
        names, here = " or ".join(waiting.processes), " and ".join(sorted(self._roles))
        reason = f"it is for {names} processes, this one is {here}"
        levels = tuple(waiting.levels)
        self._records.append(
            _record(waiting.candidate, "unused", reason, levels, processes=waiting.processes)
        )

    def _ordered(self, waiting: Sequence[_Waiting]) -> Iterable[_Waiting]:
        """In the order of the plan, else in that which they ask for; those on a cycle fail."""
        by_id = {one.candidate.id: one for one in waiting}
        if self._plan is not None:
            return [by_id[i] for i in self._plan.order(one.candidate for one in waiting)]
        order, cycles = load_order(list(by_id), {i: one.order for i, one in by_id.items()})
        for name, cycle in cycles.items():
            one = by_id[name]
            error = PluginError(f"the order of loading is a cycle: {cycle}; see PEGBOARD_ORDER")
            self._fail(one.candidate, tuple(one.levels), error)
        return [by_id[name] for name in order if name not in cycles]

    def _load(self, waiting: _Waiting) -> None:
        candidate = waiting.candidate
        try:
            self._import(waiting)
        except KeyboardInterrupt:
            raise
        except NotAdoptedError as error:
            self._leave_alone(waiting, error)
        except SettingsError as error:
            if candidate.id in self._policy.plugin_config:
                raise  # the operator's mistake, not the plugin's
            self._fail(candidate, tuple(waiting.levels), error)
        except BaseException as error:
            self._fail(candidate, tuple(waiting.levels), error)

    def _leave_alone(self, waiting: _Waiting, why: NotAdoptedError) -> None:
        reason = reason_of(why)
        self._left_alone[reason] = None
        self._records.append(_record(waiting.candidate, "unused", reason, tuple(waiting.levels)))

    def _check_adopter(self, adopter: Candidate) -> None:
        if not any(r.state == "ready" and str(r) == str(adopter) for r in self._records):
            raise PluginError(f"{adopter}, which runs plugins of this group, did not load")

    def _import(self, waiting: _Waiting) -> None:
        from pegboard.plugins import collect  # pluggy: only when there is a plugin to ask

        candidate = waiting.candidate
        context = PluginContext(
            candidate.id,
            candidate.distribution,
            candidate.version,
            self._roles,
            __version__,
            metrics=PluginMetrics(candidate.id, self._metrics),
        )
        given = self._policy.plugin_config.get(candidate.id)
        source = Provenance(
            candidate.distribution, candidate.version, candidate.id, candidate.group
        )
        self._found[source] = candidate
        judge = partial(
            accept_first,
            self._registries,
            source=source,
            override=waiting.override,
            remedies=self._remedies,
        )
        spec = None if candidate.value in sys.modules else waiting.plain
        watching = self._conduct.watching(source) if spec is None else self._conduct.timing()
        visit = collect.Visit(waiting.levels, context, given, watching, judge)
        if candidate.adopter is not None:
            self._check_adopter(candidate.adopter)
            adopter, place = candidate.adopter.value, (candidate.group, candidate.value)
            offer = collect.collect_adopted(adopter, *place, visit)
        else:
            module = collect.ToImport(candidate.value, spec)
            offer = collect.collect(module, visit)
        accepted, seen = offer.accepted, offer.seen
        self._roll_back(accepted)
        self._registries.update(accepted.registries)
        self._settings[source] = offer.settings
        self._records.append(
            _record(
                candidate,
                "ready",
                "",
                tuple(waiting.levels),
                registered=accepted.registered,
                import_seconds=seen.seconds,
                notes=(*waiting.notes, *seen.notes),
                processes=waiting.processes,
            )
        )

    def _roll_back(self, accepted: Accepted) -> None:
        """Take those off that make room for what is accepted."""
        if not accepted.going:
            return
        for record in [r for r in self._records if _source(r) in accepted.going]:
            source = _source(record)
            self._records.remove(record)
            del self._settings[source]
            self._conduct.forget(source)
            forget_module(record.module.partition(":")[0])
            own = [c for c in accepted.clashes if source in (c.first, c.second)]
            self._fail(self._found[source], record.surfaces, ClashError(own))

    def _fail(self, candidate: Candidate, surfaces: tuple[str, ...], error: BaseException) -> None:
        state: PluginState = "incompatible" if isinstance(error, IncompatibleError) else "failed"
        reason = reason_of(error)
        if isinstance(error, ClashError):
            reason += self._remedies.after(error.clashes)
            for clash in error.clashes:
                told = f"{clash}{self._remedies.after([clash])}"
                self._contested[clash.surface, clash.key] = told
        record = _record(candidate, state, reason, surfaces)
        self._records.append(record)
        notice = notice_of(record, lambda: self._remedies.setting_without(candidate))
        self._errors.append((notice, error))
        self._metrics.forget(candidate.id)


def _source(record: PluginRecord) -> Provenance:
    return Provenance(record.distribution, record.version, record.id, record.group)


def _record(
    candidate: Candidate,
    state: PluginState,
    reason: str,
    surfaces: tuple[str, ...],
    **further: Any,
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
        **further,
    )
