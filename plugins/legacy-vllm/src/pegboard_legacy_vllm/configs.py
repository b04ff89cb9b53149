"""Configuration classes that a package registers with transformers' ``AutoConfig``.

They fill in what a checkpoint's configuration leaves out because it is the class's default. Nothing
is registered with transformers itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pegboard.errors import PluginError
from pegboard_legacy_vllm.paths import Path

if TYPE_CHECKING:
    from pegboard_legacy_vllm.registries import Registered

__all__ = ["CONFIGURATION", "ConfigNotes", "complete", "read"]

CONFIGURATION = "transformers.models.auto.configuration_auto"


class ConfigNotes:
    """Notes what ``AutoConfig.register`` is called with, between `begin` and `end`."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered
        self._usual: tuple[Any, Any] | None = None

    def begin(self) -> None:
        """Stand at the place of the function, as soon as it is loaded."""
        if CONFIGURATION in sys.modules:
            self._replace(sys.modules[CONFIGURATION])

    def end(self) -> None:
        """Put it back."""
        if self._usual is not None:
            cls, register = self._usual
            cls.register = register
            self._usual = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        """The usual one, with a look at the module when it is loaded."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run: Callable[[ModuleType], None] = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                self._replace(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _replace(self, module: ModuleType) -> None:
        cls = module.AutoConfig
        self._usual = cls, vars(cls)["register"]
        cls.register = staticmethod(self._note)

    def _note(self, model_type: str, config: type, exist_ok: bool = False) -> None:
        self._registered.configs[model_type] = config


def complete(raw: Mapping[str, Any], classes: Sequence[type]) -> Mapping[str, Any]:
    """The configuration with the defaults of the class that has its model type, if there is one.

    What the checkpoint says always holds; of what all classes have in common nothing is added.
    """
    chosen: Any = next(
        (c for c in classes if getattr(c, "model_type", None) == raw.get("model_type")), None
    )
    if chosen is None:
        return raw
    common = next(c for c in reversed(chosen.__mro__) if hasattr(c, "to_dict"))
    filled = chosen.from_dict(dict(raw)).to_dict()
    for standard, own in getattr(chosen, "attribute_map", {}).items():
        if own in filled:
            filled[standard] = filled.pop(own)
            raw = {standard if key == own else key: value for key, value in raw.items()}
    usual = common().to_dict()
    return {**{k: v for k, v in filled.items() if k not in usual}, **raw}


def _read(targets: Sequence[tuple[str, str]]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    from pegboard_legacy_vllm.window import Window

    classes = []
    for module, name in targets:
        with Window(f"package {module.partition('.')[0]}"):
            found = getattr(__import__(module, fromlist=[name]), name, None)
        if not isinstance(found, type):
            raise PluginError(f"{module}:{name} is no configuration class")
        classes.append(found)
    return lambda raw: complete(raw, classes)


read = Path(lambda targets, raw: _read(targets)(raw))
"""``read.package.module.Class`` is the function of an alias that completes a configuration; further
classes follow after ``.and.``."""
