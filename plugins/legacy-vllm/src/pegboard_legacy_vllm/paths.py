"""Lazy references that carry the name of a class of a package.

A descriptor refers to ``"module:attribute"`` and nothing else, in every process. So the attribute
says it: ``pegboard_legacy_vllm.worker:half.their_package.their_module.TheirClass`` is a function
that makes a worker half of that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Path", "path_to"]

_AND = "and"
"""A keyword, so that no module or class has this name."""


class Path:
    """A function of the classes that its attributes name."""

    def __init__(self, function: Callable[..., Any], parts: tuple[str, ...] = ()) -> None:
        """`function` gets (module, class) pairs and the arguments of the call."""
        self._function = function
        self._parts = parts

    def __getattr__(self, name: str) -> Path:
        if name.startswith("__"):
            raise AttributeError(name)
        return Path(self._function, (*self._parts, name))

    def __call__(self, *args: Any) -> Any:
        return self._function(list(self._targets()), *args)

    def _targets(self) -> Sequence[tuple[str, str]]:
        texts = ".".join(self._parts).split(f".{_AND}.")
        return [(module, name) for module, _, name in (text.rpartition(".") for text in texts)]


def path_to(*targets: tuple[str, str]) -> str:
    """The attributes that name these (module, class) pairs."""
    return f".{_AND}.".join(f"{module}.{name}" for module, name in targets)
