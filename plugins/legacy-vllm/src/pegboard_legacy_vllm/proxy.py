"""One side of a KV connector of a package: building it, and calling it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from pegboard.api.connector import KVTransferConfig
from pegboard.errors import ConfigError, PegboardError, PluginError
from pegboard_legacy_vllm.base import UNUSED, KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from pegboard_legacy_vllm.refusal import RefusedError
from pegboard_legacy_vllm.values import VllmConfig
from pegboard_legacy_vllm.window import Window

__all__ = ["Proxy"]


class Proxy:
    """Calls a connector's methods while vLLM's stand-ins can be imported."""

    def __init__(
        self,
        targets: Sequence[tuple[str, str]],
        role: KVConnectorRole,
        config: KVTransferConfig,
        block_size: int,
        dtype: str,
    ) -> None:
        """`targets` is one (module, class) pair. Raises `RefusedError` for a class that needs
        more than there is, `ConfigError` where it refuses its settings."""
        ((module, name),) = targets
        self._window = Window(f"KV connector {config.kv_connector!r} ({module}:{name})")
        with self._window:
            cls: Any = getattr(importlib.import_module(module), name, None)
            self._check(cls)
            arguments = (VllmConfig(config, block_size, dtype), role, None)
            self._connector = _build(cls, arguments, config)

    def call(self, method: str, *args: Any) -> Any:
        """The answer of a method.

        What is refused now, while the engine works, is a fault like any other and stops nobody.
        """
        try:
            with self._window:
                return getattr(self._connector, method)(*args)
        except RefusedError as error:
            raise RuntimeError(str(error)) from error

    def has(self, method: str) -> bool:
        """Whether there is a method of this name."""
        return hasattr(type(self._connector), method)

    def _check(self, cls: Any) -> None:
        who = self._window.package
        if not isinstance(cls, type) or not issubclass(cls, KVConnectorBase_V1):
            raise PluginError(f"{who} does not derive from KVConnectorBase_V1")
        own = [c for c in cls.__mro__ if c not in (*KVConnectorBase_V1.__mro__, SupportsHMA)]
        more = sorted({name for c in own for name in vars(c)} & set(UNUSED))
        if more:
            raise RefusedError(who, f"has the method {', '.join(more)}, which nobody calls here")


def _build(cls: type, arguments: tuple[Any, ...], config: KVTransferConfig) -> Any:
    """vLLM's older connectors take two arguments, newer ones also what is known of the cache."""
    parameters = list(inspect.signature(cls).parameters.values())
    many = len(parameters) > 2 or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    try:
        return cls(*(arguments if many else arguments[:2]))
    except PegboardError:
        raise
    except (KeyError, ValueError) as error:
        raise ConfigError(
            f"kv_transfer_config: KV connector {config.kv_connector!r} refuses its settings: "
            f"{type(error).__name__}: {error}"
        ) from error
