"""Loading: from what is installed to a `Board`, one plugin at a time."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs

from pegboard.api.context import ROLES, ProcessRole
from pegboard.api.descriptor import Descriptor
from pegboard.errors import ConfigError
from pegboard.plugins.admission import admit
from pegboard.plugins.allowlist import VARIABLE
from pegboard.plugins.board import Board
from pegboard.plugins.builtin import core_descriptors
from pegboard.plugins.first_party import read_first_party
from pegboard.plugins.loading import Loader
from pegboard.plugins.plan import PluginPlan
from pegboard.plugins.policy import USUAL, LoadPolicy
from pegboard.plugins.settings import check_plugin_ids

__all__ = ["build_board", "load_plugins"]


def load_plugins(
    *,
    environ: Mapping[str, str] | None = None,
    role: ProcessRole | Collection[ProcessRole] = ROLES,
    policy: LoadPolicy = USUAL,
    extra: Iterable[tuple[str, Descriptor]] = (),
    search_path: Sequence[str] | None = None,
    plan: PluginPlan | None = None,
) -> Board:
    """Load every admitted plugin and return the board; the front end logs its notices.

    `environ` (default ``os.environ``) holds the allowlist. `role` is what this process is; an
    engine in one process is everything. Where `policy` is strict, a failure raises `PluginError` or
    `ConfigError`. `extra` are (surface, descriptor) pairs to register as the core's own, for tests
    and embedding programs. `search_path` replaces ``sys.path`` in the search for distributions.

    With the `plan` of another process, exactly its plugins are loaded, in its order, with its
    allowlist, settings and search path; `PluginError` names what is otherwise here.

    Raises `ConfigError` for settings that are not allowed.
    """
    board = build_board(
        environ=environ, role=role, policy=policy, extra=extra, search_path=search_path, plan=plan
    )
    if "front" in role and board.notices:
        import logging  # a board without notices has no use for it

        for notice in board.notices:
            logging.getLogger("pegboard.plugins").warning("%s", notice)
    return board


def build_board(
    *,
    environ: Mapping[str, str] | None = None,
    role: ProcessRole | Collection[ProcessRole] = ROLES,
    policy: LoadPolicy = USUAL,
    extra: Iterable[tuple[str, Descriptor]] = (),
    search_path: Sequence[str] | None = None,
    plan: PluginPlan | None = None,
    surfaces: Collection[str] | None = None,
) -> Board:
    """`load_plugins` without a log.

    With `surfaces`, plugins that declare none of them are left out unimported.
    """
    environ = os.environ if environ is None else environ
    if plan is not None:
        environ = {} if plan.allowlist is None else {VARIABLE: plan.allowlist}
        search_path = plan.search_path
        policy = attrs.evolve(policy, plugin_config=plan.settings)
    admission = admit(environ, policy, search_path, read_first_party)
    found, allowlist = admission.found, admission.allowlist
    unmatched = allowlist.unmatched_notices(found.candidates, search_path)
    if policy.strict and unmatched:
        raise ConfigError(". ".join(unmatched))
    check_plugin_ids(policy.plugin_config, (c.id for c in found.candidates))
    loader = Loader(role, policy, allowlist, plan, surfaces, read_first_party)
    loader.register_core([*core_descriptors(), *extra])
    with _without_collections():
        loader.load_all(found.candidates)
    if policy.strict:
        loader.raise_failures()
    strangers = allowlist.stranger_notices(found.candidates)
    notices = (*unmatched, *strangers, *found.notices, *found.strays)
    return loader.board(notices, read_first_party, found, search_path)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Nearly all that loading makes is there to stay: to look for garbage among it, again and
    again, takes a fifth of the time."""
    usual = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if usual:
            gc.enable()
