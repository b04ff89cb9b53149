"""The process plan: what one process loaded, for others to load the same.

The process that starts others resolves once what is loaded, in which order and with which settings.
It hands its `PluginPlan` on, whether it forks, spawns or sends it; the others load exactly that and
refuse to go on where what they find is something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from pegboard.__about__ import __version__
from pegboard.errors import PluginError
from pegboard.plugins.record import Candidate, PluginRecord, PluginState

__all__ = ["PlannedPlugin", "PluginPlan"]

_LOADED = ("ready", "shadowed", "unused")


class PlannedPlugin(NamedTuple):
    """One plugin of a plan."""

    id: str
    group: str
    distribution: str
    version: str
    module: str
    state: PluginState
    """What became of it where the plan was made."""

    @property
    def loads(self) -> bool:
        """Whether other processes load it, as far as it is for them."""
        return self.state in _LOADED

    def __str__(self) -> str:
        group = self.group.rpartition(".")[2]
        return f"{group}:{self.id} of {self.distribution} {self.version}"


@attrs.frozen
class PluginPlan:
    """What is loaded: plain data, which can be pickled and compared."""

    core: str
    """Version of the core."""
    allowlist: str | None
    """Value of the variable; None where it is not set."""
    plugins: tuple[PlannedPlugin, ...]
    """Every plugin found: those that were loaded in their order, then the others."""
    settings: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    """Values that were given to plugins, by id."""
    search_path: tuple[str, ...] | None = None
    """Where distributions are looked for; None for ``sys.path``."""

    @classmethod
    def of(
        cls,
        records: Iterable[PluginRecord],
        allowlist: str | None,
        settings: Mapping[str, Mapping[str, Any]],
        search_path: Sequence[str] | None,
    ) -> PluginPlan:
        """The plan that follows from these records, which are in the order of loading."""
        plugins = (
            PlannedPlugin(r.id, r.group, r.distribution, r.version, r.module, r.state)
            for r in records
        )
        path = None if search_path is None else tuple(search_path)
        return cls(__version__, allowlist, tuple(plugins), settings, path)

    def state_of(self, candidate: Candidate) -> PluginState | None:
        """What became of a plugin where the plan was made; None if it was not there."""
        planned = self._by_place().get(_place(candidate))
        return None if planned is None else planned.state

    def order(self, candidates: Iterable[Candidate]) -> list[str]:
        """Ids of these plugins in the order of the plan."""
        ids = {candidate.id for candidate in candidates}
        return [planned.id for planned in self.plugins if planned.loads and planned.id in ids]

    def check_found(self, admitted: Iterable[Candidate]) -> None:
        """Compare with what is installed here, before anything is imported.

        Raises `PluginError` naming each plugin that is absent, of another version or in another
        module, or admitted without a place in the plan.
        """
        here = {_place(candidate): candidate for candidate in admitted}
        planned = self._by_place()
        problems = (
            [] if self.core == __version__ else [f"the core is {__version__}, not {self.core}"]
        )
        problems += (
            f"{p} is not found here"
            for place, p in planned.items()
            if p.loads and place not in here
        )
        problems += (text for place, c in here.items() if (text := _odd(planned.get(place), c)))
        _refuse(problems)

    def check_loaded(self, records: Iterable[PluginRecord]) -> None:
        """Raise `PluginError` naming each plugin that did not load here although it did where the
        plan was made. One that was left unused there may fail here, as anywhere."""
        planned = self._by_place()
        _refuse(
            f"{r} is {r.state} here: {r.reason}"
            for r in records
            if r.state not in _LOADED
            and (p := planned.get(_place(r))) is not None
            and p.state in ("ready", "shadowed")
        )

    def digest(self, ids: Iterable[str] | None = None) -> str:
        """SHA-256, in hexadecimal, of ids, distributions, versions and given settings of these
        plugins (default: of all that load), in no particular order."""
        import hashlib  # few processes want it, and start-up must be quick
        import json

        wanted = None if ids is None else set(ids)
        rows = sorted(
            [p.group, p.id, p.distribution, p.version, self.settings.get(p.id, {})]
            for p in self.plugins
            if p.loads and (wanted is None or p.id in wanted)
        )
        text = json.dumps(rows, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _by_place(self) -> dict[tuple[str, str, str], PlannedPlugin]:
        return {_place(planned): planned for planned in self.plugins}


def _place(item: PlannedPlugin | Candidate | PluginRecord) -> tuple[str, str, str]:
    return item.group, item.id, item.distribution


def _odd(planned: PlannedPlugin | None, candidate: Candidate) -> str:
    """What is wrong with a plugin that is admitted here; empty if nothing is."""
    if planned is None or planned.state == "blocked":
        return f"{candidate} is here and not in the plan"
    if planned.version != candidate.version:
        return f"{planned} has the version {candidate.version} here"
    if planned.module != candidate.value:
        return f"{planned} is the module {candidate.value} here, not {planned.module}"
    return ""


def _refuse(problems: Iterable[str]) -> None:
    listed = "; ".join(problems)
    if listed:
        raise PluginError(
            f"the plugins of this process are not those of the process that started it: {listed}. "
            "Give both the same installation and start again"
        )
