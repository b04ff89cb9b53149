"""What a plugin's module declares about itself, read from its source before it is imported.

Every declaration is a literal in the module that the entry point names::

    PEGBOARD_API = {"model": 0}
    PEGBOARD_ORDER = {"before": ["other"], "after": ["another"]}
    PEGBOARD_OVERRIDE = {"model": ["hf:LlamaForCausalLM"]}
    PEGBOARD_PROCESSES = ("engine", "worker")

The last three may be absent.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from importlib.machinery import ModuleSpec
from typing import Any

import attrs

from pegboard.api.context import ROLES, ProcessRole
from pegboard.api.levels import API_LEVELS
from pegboard.errors import PluginError
from pegboard.plugins.modules import parse_module
from pegboard.plugins.plain import only_declares

__all__ = [
    "LEVELS",
    "OVERRIDE",
    "Declaration",
    "IncompatibleError",
    "check_override",
    "is_fixed",
    "levels_that_run",
    "read_declaration",
]

LEVELS = "PEGBOARD_API"
ORDER = "PEGBOARD_ORDER"
OVERRIDE = "PEGBOARD_OVERRIDE"
PROCESSES = "PEGBOARD_PROCESSES"

_FIXED = ("command", "scheduler")
"""Surfaces in which the core's own never give way: they are used without looking at the board."""


_SHOWN = 60
"""Characters of what somebody wrote."""


class IncompatibleError(PluginError):
    """The plugin was written for another core; the message says what to change."""


@attrs.frozen(eq=False)
class Declaration:
    """What a module declares. Each method raises `PluginError` if its part is malformed."""

    module: str
    levels: Mapping[str, int]
    """API level by surface, sorted."""
    plain: bool
    """Nothing but declarations stands in it, and in no package that is imported before it."""
    spec: ModuleSpec = attrs.field(repr=False)
    """Where the module was found."""
    _found: Mapping[str, ast.expr] = attrs.field(repr=False)

    def order(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Ids of plugins that are loaded later, and of those that are loaded earlier."""
        lists = self._lists(ORDER, ("before", "after"))
        return lists.get("before", ()), lists.get("after", ())

    def override(self) -> Mapping[str, frozenset[str]]:
        """By surface, names and claims that it takes from whoever else registers them."""
        lists = self._lists(OVERRIDE, tuple(self.levels))
        return {surface: frozenset(keys) for surface, keys in lists.items()}

    def processes(self) -> tuple[ProcessRole, ...]:
        """Where it is loaded."""
        if PROCESSES not in self._found:
            return ROLES
        value = _literal(self._found[PROCESSES])
        if not _texts(value) or not value or not set(value) <= set(ROLES):
            raise PluginError(
                f"{PROCESSES} in module {self.module!r} must be a literal tuple of some of "
                f"{', '.join(ROLES)}"
            )
        return tuple(role for role in ROLES if role in value)

    def _lists(self, name: str, keys: Collection[str]) -> dict[str, tuple[str, ...]]:
        """A literal dict of lists of texts, with some of these keys."""
        if name not in self._found:
            return {}
        value = _literal(self._found[name])
        good = isinstance(value, dict) and all(_texts(item) for item in value.values())
        if not good or not set(value) <= set(keys):
            raise PluginError(
                f"{name} in module {self.module!r} must be a literal dict of lists of texts, with "
                f"keys among {', '.join(keys)}"
            )
        return {key: tuple(items) for key, items in value.items()}


def read_declaration(module: str) -> Declaration:
    """The declaration of a module, from its syntax tree.

    Raises `PluginError` if the source cannot be read, `IncompatibleError` if the levels are missing
    or malformed.
    """
    tree, spec = parse_module(module)
    found = _assigned(tree)
    plain = "." not in module and only_declares(tree)
    return Declaration(module, _levels(module, found), plain, spec, found)


def _assigned(tree: ast.Module) -> dict[str, ast.expr]:
    """Values that module-level statements assign to our names, the last of each."""
    found = {}
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name) and target.id in (LEVELS, ORDER, OVERRIDE, PROCESSES):
                found[target.id] = node.value
    return found


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return None


def levels_that_run(surface: str, supported: Mapping[str, int] = API_LEVELS) -> str:
    """In words, what the core runs of a surface: its own level and the one before."""
    ours = supported[surface]
    return f"levels {ours - 1} and {ours}" if ours else "level 0"


def _levels(module: str, found: Mapping[str, ast.expr]) -> Mapping[str, int]:
    if LEVELS not in found:
        raise IncompatibleError(
            f"module {module!r} declares no API level; add a line such as {LEVELS} = {_example()} "
            f"naming the surfaces it registers into"
        )
    try:
        levels = ast.literal_eval(found[LEVELS])
    except (ValueError, TypeError):
        raise IncompatibleError(
            f"{_where(module)} is {_shown(found[LEVELS])}, which has to be run to be known; "
            f"{_rule()}"
        ) from None
    if not isinstance(levels, dict) or not levels:
        raise IncompatibleError(f"{_where(module)} is {levels!r}; {_rule()}")
    for surface, level in levels.items():
        if type(surface) is not str:
            raise IncompatibleError(f"{_where(module)} has the key {surface!r}; {_rule()}")
        if type(level) is not int or level < 0:
            runs = f"; this core runs {levels_that_run(surface)}" if surface in API_LEVELS else ""
            raise IncompatibleError(
                f"{_where(module)} has {level!r} as the level of {surface!r}; a level is a whole "
                f"number, 0 or above{runs}"
            )
    return dict(sorted(levels.items()))


def _where(module: str) -> str:
    return f"{LEVELS} in module {module!r}"


def _rule() -> str:
    """What the declaration must be, and what may stand there now."""
    by_level: dict[str, list[str]] = {}
    for surface in sorted(API_LEVELS):
        by_level.setdefault(levels_that_run(surface), []).append(surface)
    runs = "; ".join(f"{levels} of {', '.join(names)}" for levels, names in by_level.items())
    return (
        f"it must be a literal such as {_example()}, a dict of surface name to level. This core "
        f"runs {runs}"
    )


def _shown(node: ast.expr) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _example() -> str:
    return f'{{"model": {API_LEVELS["model"]}}}'


def _texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(type(item) is str and item for item in value)


def is_fixed(surface: str) -> bool:
    """Whether nobody can override what the core has in this surface."""
    return surface in _FIXED


def check_override(override: Mapping[str, Collection[str]], core: Collection[Any]) -> None:
    """Raise `PluginError` for a key of the core that nobody can take; `core` are its
    `Registration`s."""
    for item in core:
        if item.surface in _FIXED and item.name in override.get(item.surface, ()):
            raise PluginError(
                f"{OVERRIDE} names the {item.surface} {item.name!r}, which is the core's own and "
                "cannot be overridden"
            )
