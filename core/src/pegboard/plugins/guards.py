"""What belongs to the whole process and is no plugin's to change.

A guard knows how something was when the guard was made, says what of it is otherwise now, and puts
it back.
"""

from __future__ import annotations

import builtins
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

__all__ = [
    "Builtins",
    "DefaultDtype",
    "Environment",
    "Folder",
    "Guard",
    "Handlers",
    "Modules",
    "SearchPath",
    "Threads",
    "Warnings",
]

_USUAL_DTYPE = "float32"
"""Of torch, as long as nobody changes it."""
_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGCHLD", "SIGPIPE", "SIGUSR1", "SIGUSR2")
"""Those that end or tell something to a server, as far as the system has them."""


class Guard(Protocol):
    """What all guards can do."""

    def changes(self) -> Iterator[str]:
        """What is not as it was, in words that follow "it changes"."""
        ...

    def undo(self) -> None:
        """Put back how it was."""
        ...


class DefaultDtype:
    """Torch's default dtype, where torch is loaded."""

    def __init__(self) -> None:
        self._before = _default_dtype()

    def changes(self) -> Iterator[str]:
        now = _default_dtype()
        usual = self._before is None and str(now) in ("None", f"torch.{_USUAL_DTYPE}")
        if now != self._before and not usual:
            yield f"torch's default dtype (now {now})"

    def undo(self) -> None:
        if _default_dtype() != self._before:  # it is loaded, then
            torch = sys.modules["torch"]
            torch.set_default_dtype(self._before or getattr(torch, _USUAL_DTYPE))


def _default_dtype() -> Any:
    ask = getattr(sys.modules.get("torch"), "get_default_dtype", None)
    return None if ask is None else ask()


class Modules:
    """Modules that were loaded: each stays what it is. More may come."""

    def __init__(self, root: str = "") -> None:
        """With `root`, only the modules of this package."""
        self._before = dict(sys.modules)
        if root:
            kept = [n for n in self._before if n == root or n.startswith(f"{root}.")]
            self._before = {name: self._before[name] for name in kept}

    def changes(self) -> Iterator[str]:
        return (f"module {name} in sys.modules" for name in self._replaced())

    def undo(self) -> None:
        for name in self._replaced():
            intruder, module = sys.modules.get(name), self._before[name]
            sys.modules[name] = module
            parent, _, child = name.rpartition(".")
            if vars(sys.modules.get(parent, module)).get(child) is intruder is not None:
                setattr(sys.modules[parent], child, module)

    def _replaced(self) -> list[str]:
        if self._before.items() <= sys.modules.items():  # the quick look first
            return []
        return [n for n, module in self._before.items() if sys.modules.get(n, self) is not module]


class Handlers:
    """Handlers of signals, which only the main thread can set."""

    def __init__(self) -> None:
        self._before = _handlers()

    def changes(self) -> Iterator[str]:
        import signal

        return (f"the handler of {signal.Signals(number).name}" for number in self._replaced())

    def undo(self) -> None:
        import signal

        for number in self._replaced():
            signal.signal(number, self._before[number])

    def _replaced(self) -> list[int]:
        now = _handlers()
        # None is a handler that is not Python's, which could not be put back.
        return [n for n, old in self._before.items() if old is not None and now.get(n, old) != old]


def _handlers() -> dict[int, Any]:
    """By number; empty on other threads than the main one."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    import signal  # only where a plugin is loaded

    from pegboard.handlers import handler_of

    known = [int(getattr(signal, name)) for name in _SIGNALS if hasattr(signal, name)]
    return {number: handler_of(number) for number in known}


class Warnings:
    """Filters of warnings: none may make errors of what are warnings for everybody else."""

    def __init__(self) -> None:
        import warnings

        self._filters = warnings.filters
        self._before = list(warnings.filters)

    def changes(self) -> Iterator[str]:
        if self._new_errors():
            yield "the filters of warnings, which become errors"

    def undo(self) -> None:
        import warnings

        if self._new_errors():
            warnings.filters[:] = self._before  # type: ignore[index]

    def _new_errors(self) -> bool:
        import warnings

        return any(f[0] == "error" and f not in self._before for f in warnings.filters)


class Builtins:
    """Built-in functions and classes: each stays what it is. More may come."""

    def __init__(self) -> None:
        self._before = dict(vars(builtins))

    def changes(self) -> Iterator[str]:
        return (f"builtins.{name}" for name in self._replaced())

    def undo(self) -> None:
        for name in self._replaced():
            setattr(builtins, name, self._before[name])

    def _replaced(self) -> list[str]:
        now = vars(builtins)
        # `_` is where an interactive interpreter keeps its last answer.
        return [n for n, old in self._before.items() if now.get(n, self) is not old and n != "_"]


class SearchPath:
    """Where modules are looked for: what was there stays, in its order. More may come."""

    def __init__(self) -> None:
        self._list = sys.path
        self._before = list(sys.path)

    def changes(self) -> Iterator[str]:
        if self._lost():
            yield "what stood in sys.path"

    def undo(self) -> None:
        if self._lost():
            self._list[:] = self._before
            sys.path = self._list

    def _lost(self) -> bool:
        if sys.path == self._before:  # the quick look first
            return False
        left = iter(sys.path)
        return not all(entry in left for entry in self._before)


class Folder:
    """The working folder, from which paths are meant that a user gave."""

    def __init__(self) -> None:
        self._before = _working_folder()

    def changes(self) -> Iterator[str]:
        if _working_folder() != self._before:
            yield f"the working folder (now {_working_folder()})"

    def undo(self) -> None:
        if self._before is not None and _working_folder() != self._before:
            os.chdir(self._before)


def _working_folder() -> str | None:
    """None where it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


class Environment:
    """Environment variables: a plugin that loads may set them, and it is told."""

    def __init__(self) -> None:
        self._before = dict(os.environ)

    def changes(self) -> Iterator[str]:
        """Names, sorted; values may be secrets."""
        now = dict(os.environ)
        if now != self._before:
            names = {*now, *self._before}
            yield from sorted(n for n in names if now.get(n) != self._before.get(n))

    def undo(self) -> None:
        self.put_back(list(self.changes()))

    def put_back(self, names: Iterable[str]) -> None:
        """Of these variables, what they were."""
        for name in names:
            if name in self._before:
                os.environ[name] = self._before[name]
            else:
                os.environ.pop(name, None)


class Threads:
    """Threads that run. They cannot be stopped, but told of."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def new(self) -> list[str]:
        """Names of those that came, sorted."""
        return sorted(t.name for t in threading.enumerate() if t not in self._before)
