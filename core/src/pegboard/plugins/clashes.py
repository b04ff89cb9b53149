"""Two plugins that want one name or claim: who stays on the board, and what the operator can do.

Whoever asks for what two want is refused, whichever of them was loaded first. Of the two, the
plugin that does not belong to this release is rolled back as a whole; where both or neither does,
that is the one which was loaded later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence

from pegboard.plugins.allowlist import Allowlist
from pegboard.plugins.declared import OVERRIDE, is_fixed
from pegboard.plugins.first_party import FirstParty
from pegboard.plugins.record import Candidate
from pegboard.plugins.registry import Clash, Provenance

__all__ = ["Remedies"]


class Remedies:
    """What can be done about plugins that do not load. Made for each loading, asked by failures."""

    def __init__(
        self, allowlist: Allowlist, first_party: Callable[[], Sequence[FirstParty]]
    ) -> None:
        self._allowlist = allowlist
        self._read = first_party
        self._own: frozenset[str] | None = None
        self.candidates: Sequence[Candidate] = ()
        """All that were found."""

    def setting_without(self, plugin: Candidate) -> str:
        """``VLLM_PLUGINS=…`` as one types it, to load all that loads now but for this one."""
        value = self._allowlist.value_without([plugin], self.candidates, self._first_party())
        return self._allowlist.typed(value)

    def giving_way(self, clashes: Iterable[Clash], plugin: Provenance) -> set[Provenance]:
        """Those on the board that make room for `plugin`; empty if it is the one to go."""
        others = {p for clash in clashes for p in (clash.first, clash.second)} - {plugin}
        ours = plugin.distribution in self._first_party()
        strangers = all(p.group and p.distribution not in self._first_party() for p in others)
        return others if ours and strangers else set()

    def after(self, clashes: Sequence[Clash]) -> str:
        """What follows the words on a clash: how to leave one of the two out, and how one takes
        over on purpose."""
        sides = {p: None for clash in clashes for p in (clash.first, clash.second) if p.group}
        if all(clash.first == clash.second for clash in clashes):
            return ""  # it clashes with itself
        return "".join(f"; {way}" for way in (self.of_sources(sides), _override(clashes)) if way)

    def of_twins(self, users: Sequence[Candidate]) -> str:
        """For plugins of which only one can be there, such as two of one id."""
        strangers = [u for u in users if u.distribution not in self._first_party()]
        return ", or ".join(
            f"uninstall {user.distribution} or leave it out with {self.setting_without(user)}"
            for user in strangers or users
        )

    def of_sources(self, sides: Collection[Provenance]) -> str:
        """As `of_twins`, for those who registered something."""
        wanted = {(p.distribution, p.entry_point, p.group) for p in sides}
        users = [c for c in self.candidates if (c.distribution, c.id, c.group) in wanted]
        return self.of_twins(users)

    def _first_party(self) -> frozenset[str]:
        if self._own is None:
            self._own = frozenset(f.distribution for f in self._read())
        return self._own


def _override(clashes: Iterable[Clash]) -> str:
    """How to shadow on purpose, where that is possible."""
    keys: dict[str, list[str]] = defaultdict(list)
    for clash in clashes:
        core = not (clash.first.group and clash.second.group)
        if not (core and is_fixed(clash.surface)):
            keys[clash.surface].append(clash.key)
    if not keys:
        return ""
    return f"the one that shall have it may declare {OVERRIDE} = {dict(keys)!r} in its module"
