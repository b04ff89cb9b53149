"""The board: every registry, every plugin's record, and the errors for what is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.metrics import MetricSet, PluginMetrics
from pegboard.errors import DuplicateError, MissingPluginError, PluginError
from pegboard.plugins.absence import (
    explain_absence,
    explain_chance,
    explain_missing,
    surface_words,
)
from pegboard.plugins.allowlist import Allowlist
from pegboard.plugins.conduct import Conduct
from pegboard.plugins.first_party import FirstParty
from pegboard.plugins.plan import PluginPlan
from pegboard.plugins.record import Candidate, PluginRecord
from pegboard.plugins.registry import Provenance, Registry

if TYPE_CHECKING:
    from pegboard.plugins.report import Used

__all__ = ["Board"]


@attrs.frozen(eq=False)
class Board:
    """What `load_plugins` returns. Frozen: loading is over when it exists."""

    plugins: tuple[PluginRecord, ...]
    """Every plugin found, by group, name and distribution."""
    core: PluginRecord
    """The core, as the provider of what it registers itself."""
    allowlist: Allowlist
    plan: PluginPlan = attrs.field(repr=False)
    """What was loaded, for other processes to load the same."""
    metrics: MetricSet = attrs.field(repr=False)
    """What plugins count in this process, by names ``pegboard_plugin_<id>_<name>``."""
    _conduct: Conduct = attrs.field(repr=False)
    notices: tuple[str, ...] = ()
    """Sentences for the operator about the allowlist, stale metadata and failed plugins."""
    _registries: Mapping[str, Registry[Any]] = attrs.field(factory=dict, repr=False)
    _contested: Mapping[tuple[str, str], str] = attrs.field(factory=dict, repr=False)
    _settings: Mapping[Provenance, Any] = attrs.field(factory=dict, repr=False)
    _first_party: Callable[[], Sequence[FirstParty]] = attrs.field(default=tuple, repr=False)
    """Reads the list: only errors and a few allowlists want it."""
    _candidates: tuple[Candidate, ...] = attrs.field(default=(), repr=False)
    _search_path: Sequence[str] | None = attrs.field(default=None, repr=False)

    def registry(self, surface: str) -> Registry[Any]:
        """The registry of a surface (a key of `pegboard.api.levels.API_LEVELS`).

        Raises `PluginError` for an unknown surface.
        """
        try:
            return self._registries[surface]
        except KeyError:
            raise PluginError(
                f"there is no surface {surface!r}; there are {', '.join(sorted(self._registries))}"
            ) from None

    def require(self, surface: str, key: str, *, wanted_by: str) -> Any:
        """The descriptor with this name or claim; without it the run cannot go on.

        `wanted_by` says who asks, e.g. ``"architectures in config.json"``. Raises
        `MissingPluginError` saying what would provide it and why it is absent, or `DuplicateError`
        if two distributions claim it.
        """
        found = self.find(surface, key, wanted_by=wanted_by)
        if found is None:
            raise self.absence(surface, key, wanted_by=wanted_by)
        return found

    def find(self, surface: str, key: str, *, wanted_by: str) -> Any:
        """As `require`, and None where there is none."""
        contested = self._contested.get((surface, key))
        if contested is not None:
            raise DuplicateError(f"{contested} (wanted by {wanted_by})")
        return self.registry(surface).get(key)

    def require_any(self, surface: str, *, wanted_by: str) -> Registry[Any]:
        """The registry of a surface that must not be empty, e.g.

        ``"platform"``. Raises `MissingPluginError`.
        """
        registry = self.registry(surface)
        if not len(registry):
            raise self.absence(surface, None, wanted_by=wanted_by)
        return registry

    def absence(self, surface: str, key: str | None, *, wanted_by: str) -> MissingPluginError:
        """The error that `require` raises, for callers that have looked for themselves;

        key None means anything.
        """
        words = surface_words(surface)
        what = (
            f"no {words} is loaded" if key is None else f"no loaded plugin provides {words} {key!r}"
        )
        why = explain_absence(
            surface,
            key,
            records=self.plugins,
            first_party=self._first_party(),
            loaded=self.registry(surface).keys(),
        )
        return MissingPluginError(f"{what}, wanted by {wanted_by}. {why}")

    def chance(self, surface: str, key: str) -> str:
        """Sentences on plugins that would, or might, provide `key` and are not loaded, e.g. because
        of the allowlist; empty if there are none. For errors that say the rest themselves."""
        return explain_chance(surface, key, records=self.plugins, first_party=self._first_party())

    def offered(self, surface: str, key: str) -> bool:
        """Whether a distribution of this release provides `key`, installed or not."""
        return any(listed.offers(surface, key) for listed in self._first_party())

    def ways_out(self, things: Iterable[tuple[str, str]]) -> str:
        """What an operator can do where these (surface, name) cannot be used together: which
        distribution to uninstall, or which value of the allowlist leaves it out."""
        from pegboard.plugins.clashes import Remedies  # only errors need it

        remedies = Remedies(self.allowlist, self._first_party)
        remedies.candidates = self._candidates
        return remedies.of_sources({self.registry(s).provenance(name) for s, name in things})

    def left_out(self, surface: str) -> str:
        """Sentences on installed plugins of this surface that did not load, e.g. because of the
        allowlist; empty if there are none."""
        return explain_missing(surface, records=self.plugins, first_party=self._first_party())

    def provenance(self, surface: str, key: str) -> PluginRecord:
        """The record of the plugin that registered this name or claim.

        Raises `PluginError` if nobody did.
        """
        registry = self.registry(surface)
        if key not in registry:
            raise PluginError(f"nothing is registered as {surface_words(surface)} {key!r}")
        source = registry.provenance(key)
        for record in self.plugins:
            if (record.group, record.id, record.distribution) == (
                source.group,
                source.entry_point,
                source.distribution,
            ):
                return record
        return self.core

    def check_lock(self, path: str) -> None:
        """Raise `PluginError` unless the admitted plugins are those of the lock at `path`, and
        `ConfigError` if that is none."""
        from pegboard.plugins.admission import Admission
        from pegboard.plugins.discover import Discovery
        from pegboard.plugins.lock import enforce_lock  # few runs have one

        admission = Admission(Discovery(self._candidates), self.allowlist)
        enforce_lock(path, admission, self._search_path)

    def report(self, used: Used | None = None) -> list[dict[str, Any]]:
        """One row of plain values for the core and for each plugin found: what is installed, what
        is loaded and what is used by the engine whose names are `used`, by surface."""
        from pegboard.plugins.report import plugin_report  # start-up must be quick

        return plugin_report(self, used)

    def watched(self) -> AbstractContextManager[None]:
        """A context for the building of an engine, which imports the lazy parts of plugins.

        Its end raises `PluginError` where the core was patched meanwhile, unless unsafe plugins are
        allowed; the patch is undone.
        """
        from pegboard.plugins.references import code_owners  # only an engine wants it

        ready = (record for record in self.plugins if record.state == "ready")
        return self._conduct.building(code_owners(ready, self._registries.values()))

    def settings(self, surface: str, key: str) -> Any:
        """The settings of the plugin that registered this name or claim; None if it has none, and
        for what nobody registered."""
        registry = self.registry(surface)
        return self._settings.get(registry.provenance(key)) if key in registry else None

    def giving(self, settings: Mapping[Provenance, Any]) -> Board:
        """The same board, on which these plugins have other settings in this process: for tests,
        which have an instance and no ``plugin_config``."""
        return attrs.evolve(self, settings={**self._settings, **settings})

    def signatures(self, used: Iterable[tuple[str, str]]) -> list[str]:
        """A line for each plugin that registered one of these (surface, name) pairs, sorted: what
        it is called, its version, and a digest of the settings that were given to it. Where they
        are equal in two processes, the same plugins worked in the same way."""
        records = {self.provenance(surface, name) for surface, name in used}
        return sorted(
            f"{record} {self.plan.digest([record.id])[:16]}" for record in records - {self.core}
        )

    def handed(self, surface: str, key: str) -> dict[str, Any]:
        """What the context objects of a surface hand to the plugin that registered this name or
        claim: its `settings` and its `metrics`."""
        registry = self.registry(surface)
        owner = registry.provenance(key).entry_point if key in registry else "core"
        metrics = PluginMetrics(owner, self.metrics)
        return {"settings": self.settings(surface, key), "metrics": metrics}

    def allows_module(self, path: str) -> bool:
        """Whether the allowlist lets a class named by module path be imported.

        The path is ``pkg.module:Class`` or ``pkg.module.Class``. Nothing is imported to find out.
        """
        from pegboard.plugins.ownership import module_allowed  # start-up must be quick

        return module_allowed(self.allowlist, path, self._candidates, self._search_path)
