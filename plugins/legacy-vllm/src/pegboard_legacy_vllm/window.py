"""The time in which ``import vllm`` finds the stand-ins: while code of a package runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pegboard_legacy_vllm.configs import CONFIGURATION, ConfigNotes
from pegboard_legacy_vllm.refusal import RefusedImportError
from pegboard_legacy_vllm.registries import CURRENT, Registered
from pegboard_legacy_vllm.sealed import PACKAGE
from pegboard_legacy_vllm.stand_ins import ROOT, is_package, stand_in

__all__ = ["Window", "real_vllm"]


def real_vllm() -> bool:
    """Whether vLLM itself is installed."""
    from importlib.util import find_spec

    if ROOT in sys.modules:
        return True
    spec = find_spec(ROOT)
    return spec is not None and spec.origin is not None  # a folder of that name is none


class Window:
    """A context in which the stand-ins can be imported; may be entered again and again.

    What it put into ``sys.modules`` is gone when it is left, so that nobody else takes vLLM for
    installed.
    """

    def __init__(self, package: str, registered: Registered | None = None) -> None:
        """`package` is whose code runs, for messages; what it registers goes to `registered`."""
        self.package = package
        self._registered = registered
        self._configs = None if registered is None else ConfigNotes(registered)
        self._served: set[str] = set()
        self._tokens: list[tuple[Any, Any]] = []
        self.refused: list[str] = []
        """What was said of imports that were refused; the package may have caught it."""

    def __enter__(self) -> Window:
        if not self._tokens:
            sys.meta_path.insert(0, self)
            if self._configs is not None:
                self._configs.begin()
        self._tokens.append((PACKAGE.set(self.package), CURRENT.set(self._registered)))
        return self

    def __exit__(self, *_: object) -> None:
        package, current = self._tokens.pop()
        PACKAGE.reset(package)
        CURRENT.reset(current)
        if self._tokens:
            return
        sys.meta_path.remove(self)
        if self._configs is not None:
            self._configs.end()
        for name in self._served:
            sys.modules.pop(name, None)
        self._served.clear()

    # For the import system

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A stand-in's, or a refusal."""
        if name == CONFIGURATION and self._configs is not None:
            return self._configs.find_spec(name, path, target)
        if name.partition(".")[0] != ROOT:
            return None
        if stand_in(name) is None:
            error = RefusedImportError(
                self.package, f"imports {name}, for which there is no stand-in"
            )
            self.refused.append(str(error))
            raise error
        self._served.add(name)
        loader: Any = self
        return ModuleSpec(name, loader, is_package=is_package(name))

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The stand-in, which exists."""
        return stand_in(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is complete."""
