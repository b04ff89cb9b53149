"""vLLM's registries: they note what a package registers while it is asked."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, cast

import attrs

from pegboard_legacy_vllm.refusal import RefusedError
from pegboard_legacy_vllm.sealed import PACKAGE, SealedValue, sealed

__all__ = ["CURRENT", "KVConnectorFactory", "ModelRegistry", "Registered", "init_logger"]


@attrs.define
class Registered:
    """What one package registered."""

    models: dict[str, Any] = attrs.field(factory=dict)
    """By architecture: ``"module:class"`` or a class."""
    connectors: dict[str, tuple[str, str]] = attrs.field(factory=dict)
    """By name: module and class."""
    configs: dict[str, type] = attrs.field(factory=dict)
    """Classes by model type."""


CURRENT: ContextVar[Registered | None] = ContextVar("CURRENT", default=None)
"""Of the package that is being asked."""


def _current() -> Registered:
    found = CURRENT.get()
    if found is None:
        raise RefusedError(PACKAGE.get(), "registers something later than its entry point")
    return found


class _Names:
    """What the package has registered itself; packages look whether something is there already."""

    def __init__(self, called: str) -> None:
        """`called` is the attribute of `Registered`."""
        self._called = called

    def __contains__(self, name: object) -> bool:
        return name in getattr(_current(), self._called)

    def __setitem__(self, name: str, _: object) -> None:
        raise RefusedError(PACKAGE.get(), f"writes {name!r} into a registry of vLLM itself")


@sealed
class ModelRegistry(SealedValue):
    """The registry of models; nobody needs an instance."""

    models = _Names("models")

    @classmethod
    def register_model(cls, model_arch: str, model_cls: Any) -> None:
        """Note an architecture."""
        _current().models[model_arch] = model_cls

    @classmethod
    def get_supported_archs(cls) -> set[str]:
        """Those that the package has registered itself: others are nobody's to look at."""
        return set(_current().models)


@sealed
class KVConnectorFactory(SealedValue):
    """The factory of KV connectors."""

    _registry = _Names("connectors")

    @classmethod
    def register_connector(cls, name: str, module_path: str, class_name: str) -> None:
        """Note a connector."""
        _current().connectors[name] = (module_path, class_name)


class _Logger(logging.LoggerAdapter[logging.Logger]):
    """With vLLM's methods that log a message once."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(f"pegboard.plugin.{name}"), {})
        self._told: set[Any] = set()

    def debug_once(self, message: str, *args: Any, **_: Any) -> None:
        self._once(logging.DEBUG, message, args)

    def info_once(self, message: str, *args: Any, **_: Any) -> None:
        self._once(logging.INFO, message, args)

    def warning_once(self, message: str, *args: Any, **_: Any) -> None:
        self._once(logging.WARNING, message, args)

    def _once(self, level: int, message: str, args: tuple[Any, ...]) -> None:
        if (message, str(args)) not in self._told:
            self._told.add((message, str(args)))
            self.log(level, message, *args)


def init_logger(name: str) -> logging.Logger:
    """A logger of a module, under the engine's tree."""
    return cast("logging.Logger", _Logger(name))
