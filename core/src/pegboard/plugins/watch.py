"""Whether the core is still what it was: plugins that replace parts of it are found out.

Functions and classes of every core module, and what stands in the bodies of its classes, are noted
when the module is loaded and compared, by identity, after plugin code has run. The note of a module
that a plugin is the first to import is taken between its execution and the plugin's next statement.
Names that a module finds late, with a ``__getattr__``, never stand in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, KeysView, Mapping, ValuesView
from importlib.machinery import ModuleSpec, PathFinder
from itertools import chain
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

__all__ = ["CoreWatch", "Patch"]

_ROOT = __name__.partition(".")[0]
_ABSENT: Any = object()
_KEPT_BY_PYTHON = ("__annot", "__static", "__firstline")
"""Beginnings of names that the interpreter itself fills in late in the body of a class."""

_FINDS_LATE = "__getattr__"
"""Of a module."""
_METHODS = (FunctionType, classmethod, staticmethod, property)


class Patch(NamedTuple):
    """One attribute of the core that is not what it was."""

    owner: Any
    """A module or a class."""
    name: str
    before: Any
    """`_ABSENT` where there was none."""

    def undo(self) -> None:
        """Put back what was there."""
        if self.before is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.before)

    def root(self) -> str:
        """Top module of the code that stands there now."""
        now = vars(self.owner).get(self.name)
        function = getattr(now, "__func__", now)  # of a class method
        names = getattr(function, "__globals__", {})
        own = now if isinstance(now, type) else type(now)
        return str(names.get("__name__") or own.__module__).partition(".")[0]

    def __str__(self) -> str:
        owner = self.owner
        place = owner.__name__
        if isinstance(owner, type):
            place = f"{owner.__module__}.{owner.__qualname__}"
        return f"{place}.{self.name}"


class _QuickLook:
    """What was noted, laid out so that comparing it takes a fraction of a millisecond.

    It is done for each plugin. Like containers do, it compares by identity before all else. Of the
    bodies of classes it compares the values in their order, and the last of the names: a name that
    comes or goes changes one of them.
    """

    def __init__(self) -> None:
        self._readers: list[tuple[Callable[[Any], Any], Any]] = []
        self._parts: list[Any] = []
        self._absent: list[tuple[KeysView[str], frozenset[str]]] = []
        self._bodies: list[Any] = []  # these stay up to date, and so do their views
        self._views: list[ValuesView[Any]] = []
        self._values: list[Any] = []
        self._last: list[str] = []

    def add_module(self, module: ModuleType, parts: Mapping[str, Any]) -> None:
        """Its noted parts."""
        late = frozenset(name for name, value in parts.items() if value is _ABSENT)
        if late:
            self._absent.append((vars(module).keys(), late))
        there = parts.keys() - late
        if there:
            read = itemgetter(*there)
            self._readers.append((read, vars(module)))
            self._parts.append(read(parts))

    def add_class(self, cls: type, parts: Mapping[str, Any]) -> None:
        """Its whole body."""
        self._bodies.append(vars(cls))
        self._views.append(vars(cls).values())
        self._values += parts.values()
        self._last.append(next(reversed(vars(cls))))

    def is_enough(self) -> bool:
        """Whether everything is as noted; where it is not, the caller looks closer."""
        try:
            return (
                [*chain.from_iterable(self._views)] == self._values
                and [next(reversed(body)) for body in self._bodies] == self._last
                and [read(now) for read, now in self._readers] == self._parts
                and all(late.isdisjoint(names) for names, late in self._absent)
            )
        except Exception:  # a name is gone, or something stands there that cannot be compared
            return False


class CoreWatch:
    """Knows how the core's modules were. As a context, it also sees those that are loaded in it.

    It finds modules as the interpreter does and only takes a note of each; what is loaded outside
    of a context is first noted by the next `note`.
    """

    def __init__(self) -> None:
        self._modules: dict[str, tuple[ModuleType, dict[str, Any]]] = {}
        self._classes: dict[type, dict[str, Any]] = {}
        self._quick = _QuickLook()
        self._depth = 0

    def __enter__(self) -> CoreWatch:
        if not self._depth:
            sys.meta_path.insert(0, self)
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Any = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """For the import system: as the usual finder, with a note taken after the execution."""
        if path is None or not name.startswith(f"{_ROOT}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader = None if spec is None else spec.loader
        if loader is None or not hasattr(loader, "__dict__"):
            return None
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            if name not in self._modules:  # else it was loaded before, and this is a replacement
                self._note(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def note(self) -> None:
        """Take what the core's modules are now for what they should be."""
        self._modules.clear()
        self._classes.clear()
        self._quick = _QuickLook()
        for name, module in list(sys.modules.items()):
            if name == _ROOT or name.startswith(f"{_ROOT}."):
                self._note(module)

    def patches(self) -> list[Patch]:
        """Everything that is not as noted."""
        if self._quick.is_enough():
            return []
        found = [*self._patches()]
        if not found:  # what Python fills in late need not be looked at again
            self._quick = _QuickLook()
            for module, parts in self._modules.values():
                self._quick.add_module(module, parts)
            for cls in self._classes:
                self._note_class(cls)
        return found

    def _note(self, module: ModuleType) -> None:
        parts = {
            k: v
            for k, v in vars(module).items()
            if callable(v) and (not k.startswith("__") or k == _FINDS_LATE)
        }
        if _FINDS_LATE in parts:
            public = getattr(module, "__all__", ())
            parts.update((name, _ABSENT) for name in public if name not in vars(module))
        self._modules[module.__name__] = module, parts
        self._quick.add_module(module, parts)
        for value in parts.values():
            own = isinstance(value, type) and value.__module__ == module.__name__
            if own and value not in self._classes:
                self._note_class(value)

    def _note_class(self, cls: type) -> None:
        parts = dict(vars(cls))
        self._classes[cls] = parts
        self._quick.add_class(cls, parts)

    def _patches(self) -> Iterator[Patch]:
        for module, parts in self._modules.values():
            now = vars(module)
            for name, before in parts.items():
                if now.get(name, _ABSENT) is not before:
                    yield Patch(module, name, before)
        for cls, parts in self._classes.items():
            yield from _patches_of_class(cls, parts)


def _patches_of_class(cls: type, parts: Mapping[str, Any]) -> Iterator[Patch]:
    now = vars(cls)
    for name in (*parts, *(name for name in now if name not in parts)):
        before, after = parts.get(name, _ABSENT), now.get(name, _ABSENT)
        if after is not before and not _late(name, before, after):
            yield Patch(cls, name, before)


def _late(name: str, before: Any, after: Any) -> bool:
    """Whether Python and the libraries that make classes do this by themselves: what is no method
    among the names with underscores on both sides."""
    if not (name.startswith("__") and name.endswith("__")):
        return False
    methods = [value for value in (before, after) if value is not _ABSENT and _is_method(value)]
    return name.startswith(_KEPT_BY_PYTHON) or not methods


def _is_method(value: Any) -> bool:
    """Also a class is callable, but none of the names in question holds one as a method."""
    return isinstance(value, _METHODS) or (callable(value) and not isinstance(value, type))
