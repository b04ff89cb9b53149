"""The board: finding plugins, deciding which may load, and keeping what they register.

`load_plugins` is the only way in. It returns a `Board`; nothing is kept in this package, so two
boards with different allowlists can live in one process. The order of work is: discover
(`discover`), admit (`allowlist`), check the API level without importing (`levels`), import and call
the hooks (`collect`), register (`registry`).
"""

from __future__ import annotations

from pegboard.plugins.allowlist import VARIABLE, Allowlist
from pegboard.plugins.board import Board
from pegboard.plugins.loader import build_board, load_plugins
from pegboard.plugins.plan import PluginPlan
from pegboard.plugins.policy import LoadPolicy
from pegboard.plugins.record import GROUPS, PluginRecord, PluginState, Registration
from pegboard.plugins.registry import Provenance, Registry

__all__ = [
    "GROUPS",
    "VARIABLE",
    "Allowlist",
    "Board",
    "LoadPolicy",
    "PluginPlan",
    "PluginRecord",
    "PluginState",
    "Provenance",
    "Registration",
    "Registry",
    "build_board",
    "load_plugins",
]
