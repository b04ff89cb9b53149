"""What a plugin may not do while it is imported and asked.

It may not patch the core, change what belongs to the whole process, or print.

What it did is undone where that is possible; a patch is a failure, unless the operator allows
unsafe plugins. Where a plugin fails, the environment is put back, too.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pegboard.errors import DuplicateError, PluginError
from pegboard.plugins.guards import (
    Builtins,
    DefaultDtype,
    Environment,
    Folder,
    Guard,
    Handlers,
    Modules,
    SearchPath,
    Threads,
    Warnings,
)
from pegboard.plugins.registry import Provenance
from pegboard.plugins.watch import CoreWatch

__all__ = ["Conduct", "Observed"]

_SLOW = 1.0
"""Seconds of import and hooks from which on they are told of."""
_CORE = __name__.partition(".")[0]
_SHOWN = 60
"""Characters."""


class Observed:
    """What was seen of one plugin."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.notes: list[str] = []


class _Kept(io.TextIOWrapper):
    """A standard output that keeps what this thread writes; that of other threads goes on."""

    def __init__(self, usual: Any) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
        self._usual = usual
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        if threading.get_ident() != self._thread:
            return int(self._usual.write(text))
        return super().write(text)

    def close(self) -> None:
        """Nothing: a plugin that closes its standard output closes nobody else's."""

    def text(self) -> str:
        """What was written."""
        kept = self.buffer
        assert isinstance(kept, io.BytesIO), "it was made so"
        return kept.getvalue().decode(errors="replace")


class Conduct:
    """Watches plugins, one at a time."""

    def __init__(self, unsafe: bool) -> None:
        self._unsafe = unsafe
        self._watch = CoreWatch()
        self._noted = False
        self._setters: dict[str, Provenance] = {}
        """Of environment variables."""
        self._environments: dict[Provenance, Environment] = {}
        """How they were before those who set any."""

    @contextlib.contextmanager
    def timing(self) -> Iterator[Observed]:
        """For a plugin that only declares, as its source shows: what it could do is nothing to
        watch for, but parts of the core that come with it are noted."""
        seen, start = Observed(), time.perf_counter()
        with self._watch:
            yield seen
        seen.seconds = time.perf_counter() - start
        seen.notes += _notes(seen.seconds, "", torch_was_here=True)

    @contextlib.contextmanager
    def watching(self, plugin: Provenance) -> Iterator[Observed]:
        """While a plugin is imported and asked. Raises `PluginError` for a patch when it is done,
        `DuplicateError` for a variable of the environment that a plugin of another distribution
        set; where it raises itself, what it changed is undone, too."""
        seen, printed = Observed(), _Kept(sys.stdout)
        if not self._noted:  # what is loaded later is noted as it comes
            self._watch.note()
            self._noted = True
        torch_was_here = "torch" in sys.modules
        environment, threads = Environment(), Threads()
        guards: tuple[Guard, ...] = (
            Builtins(),  # the first to be put back: all else is built on them
            SearchPath(),
            Folder(),
            DefaultDtype(),
            Modules(),
            Handlers(),
            Warnings(),
        )
        start = time.perf_counter()
        try:
            with self._watch, contextlib.redirect_stdout(printed):
                yield seen
            seen.seconds = time.perf_counter() - start
            patched = self._patched(guards)
            if patched and not self._unsafe:
                raise PluginError(f"it {_patch_text(patched)}")
            self._claim(plugin, environment)
        except BaseException:
            self._undo((*guards, environment))
            raise
        seen.notes += _notes(seen.seconds, printed.text(), torch_was_here)
        seen.notes += _left_behind(environment, threads)
        if patched:
            seen.notes.append(f"it changes {', '.join(patched)}, which unsafe_plugins allows")
            self._noted = False

    def _claim(self, plugin: Provenance, environment: Environment) -> None:
        """The variables that it changed are its own, unless they are another's."""
        names = [*environment.changes()]
        for name in names:
            first = self._setters.get(name, plugin)
            if first.distribution != plugin.distribution:
                raise DuplicateError(
                    f"environment variable {name!r} is set by both {first} ({first.entry_point}) "
                    f"and {plugin} ({plugin.entry_point})"
                )
        self._setters.update(dict.fromkeys(names, plugin))
        if names:
            self._environments[plugin] = environment

    def forget(self, plugin: Provenance) -> None:
        """Put back the environment variables that this plugin set, and nobody before it."""
        names = [name for name, setter in self._setters.items() if setter == plugin]
        if plugin in self._environments:
            self._environments.pop(plugin).put_back(names)
        for name in names:
            del self._setters[name]

    @contextlib.contextmanager
    def building(self, plugins: Mapping[str, str]) -> Iterator[None]:
        """While an engine is built, which imports the lazy parts of plugins.

        `plugins` says of modules at the top whose plugin they are. Raises `PluginError` where the
        core was patched meanwhile; the patch is undone, as it is where the building fails.
        """
        self._watch.note()
        guards = (DefaultDtype(), Modules(_CORE))
        try:
            with self._watch:
                yield
        except BaseException:
            self._undo(guards)
            raise
        patched = self._patched(guards)
        if not patched:
            return
        roots = {patch.root() for patch in self._watch.patches()}
        names = sorted(plugins.get(root, root) for root in roots)
        code = f"code of {', '.join(names)}" if names else "code"
        if not self._unsafe:
            self._undo(guards)
            raise PluginError(f"while the engine was built, {code} {_patch_text(patched)}")
        import logging  # few runs are unsafe

        logging.getLogger("pegboard.plugins").warning(
            "%s changes %s, which unsafe_plugins allows", code, ", ".join(patched)
        )

    def _patched(self, guards: Sequence[Guard]) -> list[str]:
        found = [str(patch) for patch in self._watch.patches()]
        return found + [text for guard in guards for text in guard.changes()]

    def _undo(self, guards: Sequence[Guard]) -> None:
        for patch in self._watch.patches():
            patch.undo()
        for guard in guards:
            guard.undo()


def _patch_text(patched: Sequence[str]) -> str:
    return (
        f"changes {', '.join(patched)}, which is undone; plugins use the hooks and contracts of "
        "pegboard.api, or run under unsafe_plugins"
    )


def _notes(seconds: float, printed: str, torch_was_here: bool) -> Iterator[str]:
    if printed.strip():
        shown = printed if len(printed) <= _SHOWN else printed[:_SHOWN] + "…"
        yield f"it prints at start-up, which is left out: {shown.strip()!r}"
    if "torch" in sys.modules and not torch_was_here:
        yield "it imports torch at start-up; keep that behind its lazy references"
    if seconds >= _SLOW:
        yield f"its import and hooks took {seconds:.1f} s"


def _left_behind(environment: Environment, threads: Threads) -> Iterator[str]:
    variables, names = list(environment.changes()), threads.new()
    if variables:
        yield f"it changes environment variables at start-up: {', '.join(variables)}"
    if names:
        yield f"it starts threads at start-up: {', '.join(names)}; start them where they are used"
