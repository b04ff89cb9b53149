"""Which version of each named op a run uses: chosen once, visible, never changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pegboard.api.ops import OpVersion
from pegboard.errors import DuplicateError, PluginError
from pegboard.nn.ops import OPS

__all__ = ["OpTable"]

PLAIN = "plain"


class OpTable:
    """A function for every op of `pegboard.nn.ops.OPS`.

    Make one with `plain` or `choose`; modules take what they need when they are built:
    ``ctx.ops["rms_norm"]``.
    """

    def __init__(
        self, functions: Mapping[str, Callable[..., Any]], choices: Mapping[str, str]
    ) -> None:
        assert functions.keys() == choices.keys() == OPS.keys()
        self._functions = MappingProxyType(dict(functions))
        self._choices = MappingProxyType(dict(choices))

    @classmethod
    def plain(cls) -> OpTable:
        """The table of oracles: plain torch everywhere."""
        return cls({name: op.plain for name, op in OPS.items()}, dict.fromkeys(OPS, PLAIN))

    @classmethod
    def choose(
        cls,
        versions: Iterable[OpVersion],
        *,
        platform: str,
        dtype: str,
        batch_invariant: bool = False,
    ) -> OpTable:
        """Take for each op the version of highest priority whose conditions hold, else the plain
        one.

        `dtype` is the compute dtype by torch name; with `batch_invariant` only versions that
        declare it count. Raises `PluginError` for a version of an op that does not exist and where
        two versions that hold have the same priority, `DuplicateError` for two versions of one
        name.
        """
        offered = tuple(versions)
        _check_names(offered)
        fitting = [
            version
            for version in offered
            if (not version.platforms or platform in version.platforms)
            and (not version.dtypes or dtype in version.dtypes)
            and (version.batch_invariant or not batch_invariant)
        ]
        functions = {name: op.plain for name, op in OPS.items()}
        choices = dict.fromkeys(OPS, PLAIN)
        for op in OPS:
            best = _best([version for version in fitting if version.op == op])
            if best is not None:
                functions[op], choices[op] = best.function.load(), best.name
        return cls(functions, choices)

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """The chosen function. Raises `PluginError` for a name that is no op."""
        if op not in self._functions:
            raise PluginError(f"there is no op {op!r}; the ops are {', '.join(OPS)}")
        return self._functions[op]

    def widest(self, op: str) -> Callable[..., Any] | None:
        """The chosen function of an op that joins several others, or None where only the plain one
        is there: whoever asks then puts its parts together, which may have faster versions.
        """
        function = self[op]
        return None if self._choices[op] == PLAIN else function

    def choices(self) -> dict[str, str]:
        """Name of the chosen version by op, ``"plain"`` for the core's own: for banners and bug
        reports.
        """
        return dict(self._choices)


def _check_names(versions: tuple[OpVersion, ...]) -> None:
    seen: set[str] = set()
    for version in versions:
        if version.op not in OPS:
            raise PluginError(
                f"op version {version.name!r} is for op {version.op!r}, which does not exist; "
                f"the ops are {', '.join(OPS)}"
            )
        if version.name in seen or version.name == PLAIN:
            raise DuplicateError(f"two op versions are called {version.name!r}")
        seen.add(version.name)


def _best(versions: list[OpVersion]) -> OpVersion | None:
    ranked = sorted(versions, key=lambda version: -version.priority)
    if len(ranked) > 1 and ranked[0].priority == ranked[1].priority:
        first, second = sorted(version.name for version in ranked[:2])
        raise PluginError(
            f"op versions {first!r} and {second!r} both hold for op {ranked[0].op!r} "
            f"with priority {ranked[0].priority}; one of them needs another priority"
        )
    return ranked[0] if ranked else None
