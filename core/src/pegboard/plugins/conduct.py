"""What a plugin may not do while it is imported and asked: patch the core, change defaults, print.

What it did is undone where that is possible; a patch is a failure, unless the operator allows
unsafe plugins.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pegboard.errors import PluginError
from pegboard.plugins.watch import CoreWatch

__all__ = ["Conduct", "Observed"]

_SLOW = 1.0
"""Seconds of import and hooks from which on they are told of."""
_USUAL_DTYPE = "float32"
"""Of torch, as long as nobody changes it."""
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

    @contextlib.contextmanager
    def watching(self) -> Iterator[Observed]:
        """While a plugin is imported and asked. Raises `PluginError` for a patch when it is done;
        where it raises itself, what it patched is undone, too."""
        seen, printed = Observed(), _Kept(sys.stdout)
        if not self._noted:  # what is loaded later is noted as it comes
            self._watch.note()
            self._noted = True
        torch_was_here, dtype = "torch" in sys.modules, _default_dtype()
        start = time.perf_counter()
        try:
            with self._watch, contextlib.redirect_stdout(printed):
                yield seen
        except BaseException:
            self._undo(dtype)
            raise
        seen.seconds = time.perf_counter() - start
        patched = self._patched(dtype)
        if patched and not self._unsafe:
            self._undo(dtype)
            raise PluginError(f"it {_patch_text(patched)}")
        seen.notes += _notes(seen.seconds, printed.text(), torch_was_here)
        if patched:
            seen.notes.append(f"it changes {', '.join(patched)}, which unsafe_plugins allows")
            self._noted = False

    @contextlib.contextmanager
    def building(self, plugins: Mapping[str, str]) -> Iterator[None]:
        """While an engine is built, which imports the lazy parts of plugins.

        `plugins` says of modules at the top whose plugin they are. Raises `PluginError` where the
        core was patched meanwhile; the patch is undone, as it is where the building fails.
        """
        self._watch.note()
        dtype = _default_dtype()
        try:
            with self._watch:
                yield
        except BaseException:
            self._undo(dtype)
            raise
        patched = self._patched(dtype)
        if not patched:
            return
        roots = {patch.root() for patch in self._watch.patches()}
        names = sorted(plugins.get(root, root) for root in roots)
        code = f"code of {', '.join(names)}" if names else "code"
        if not self._unsafe:
            self._undo(dtype)
            raise PluginError(f"while the engine was built, {code} {_patch_text(patched)}")
        import logging  # few runs are unsafe

        logging.getLogger("pegboard.plugins").warning(
            "%s changes %s, which unsafe_plugins allows", code, ", ".join(patched)
        )

    def _patched(self, dtype: Any) -> list[str]:
        found = [str(patch) for patch in self._watch.patches()]
        now = _default_dtype()
        usual = dtype is None and str(now) in ("None", f"torch.{_USUAL_DTYPE}")
        if now != dtype and not usual:
            found.append(f"torch's default dtype (now {now})")
        return found

    def _undo(self, dtype: Any) -> None:
        for patch in self._watch.patches():
            patch.undo()
        if _default_dtype() != dtype:  # it is loaded, then
            torch = sys.modules["torch"]
            torch.set_default_dtype(dtype or getattr(torch, _USUAL_DTYPE))


def _default_dtype() -> Any:
    """Of torch, where that is loaded."""
    ask = getattr(sys.modules.get("torch"), "get_default_dtype", None)
    return None if ask is None else ask()


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
