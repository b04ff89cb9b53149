"""What is installed and may load: the part of loading that imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from pegboard.plugins.allowlist import VARIABLE, Allowlist
from pegboard.plugins.discover import Discovery, discover
from pegboard.plugins.first_party import FirstParty, read_first_party
from pegboard.plugins.policy import LoadPolicy
from pegboard.plugins.record import Candidate

__all__ = ["Admission", "admit"]


class Admission(NamedTuple):
    """All candidates and the allowlist that judges them."""

    found: Discovery
    allowlist: Allowlist

    @property
    def admitted(self) -> tuple[Candidate, ...]:
        """Candidates that may load, in order."""
        return tuple(c for c in self.found.candidates if self.allowlist.admits(c))


def admit(
    environ: Mapping[str, str],
    policy: LoadPolicy,
    search_path: Sequence[str] | None = None,
    first_party: Callable[[], Sequence[FirstParty]] = read_first_party,
) -> Admission:
    """Discover plugins and read the allowlist; then compare with the lock, if `policy` has one.

    Raises `ConfigError` for a lock file that cannot be read and `PluginError` for an installation
    that differs from it.
    """
    narrowed = VARIABLE in environ or policy.only is not None
    names = (f.distribution for f in (first_party() if narrowed else ()))
    allowlist = Allowlist.from_environ(environ, names, policy.only)
    admission = Admission(discover(search_path), allowlist)
    if policy.lock is not None:
        from pegboard.plugins.lock import enforce_lock  # few runs have one

        enforce_lock(policy.lock, admission, search_path)
    return admission
