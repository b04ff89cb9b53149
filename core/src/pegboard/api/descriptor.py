"""What a plugin hands to the board: frozen descriptors whose heavy part is a lazy reference.

Called by: the plugin framework, once at start-up. A hook returns descriptors; nothing of what they
describe is imported until the engine needs it, so listing plugins stays quick.
"""

from __future__ import annotations

import importlib
from typing import Any, Protocol, runtime_checkable

import attrs

from pegboard.errors import PluginError

__all__ = ["Descriptor", "LazyRef", "lazy_ref"]


@attrs.frozen
class LazyRef:
    """A reference ``"package.module:attribute"`` that is imported on `load`, not before."""

    target: str = attrs.field()

    @target.validator
    def _check(self, _: Any, value: str) -> None:
        module, colon, attribute = value.partition(":")
        parts = (*module.split("."), *attribute.split("."))
        if not colon or not all(part.isidentifier() for part in parts):
            raise PluginError(
                f"lazy reference {value!r} is not of the form 'package.module:attribute'"
            )

    def load(self) -> Any:
        """Import the module and return the attribute.

        Raises `PluginError` if the import fails, would end the process, or the attribute is absent.
        """
        module_name, _, attribute = self.target.partition(":")
        absent = ""
        try:
            value: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                if not hasattr(value, part):
                    absent = part
                    break
                value = getattr(value, part)
        except (Exception, SystemExit) as error:  # whatever a plugin's module does
            raise PluginError(
                f"cannot import {self.target!r}: {type(error).__name__}: {error}"
            ) from error
        if absent:
            raise PluginError(f"{module_name!r} has no attribute {absent!r} (from {self.target!r})")
        return value

    def __str__(self) -> str:
        return self.target


def lazy_ref(value: str | LazyRef) -> LazyRef:
    """Accept a plain string where a reference is wanted (an attrs converter)."""
    return value if isinstance(value, LazyRef) else LazyRef(value)


@runtime_checkable
class Descriptor(Protocol):
    """What every descriptor has.

    `name` is unique in its surface. `claims()` are further strings unique in the surface
    (architectures of a model family, checkpoint method names of a quantisation); a second plugin
    with the same name or claim is refused.
    """

    @property
    def name(self) -> str: ...

    def claims(self) -> tuple[str, ...]: ...
