"""Asking one package what it registers with vLLM, and saying the same to Pegboard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from pegboard.api.alias import ModelAlias
from pegboard.api.connector import ConnectorAbilities, KVConnector
from pegboard.api.descriptor import Descriptor
from pegboard.api.foreign import ForeignPlugin, NotAdoptedError
from pegboard.errors import PluginError
from pegboard_legacy_vllm.aliases import known_as
from pegboard_legacy_vllm.paths import path_to
from pegboard_legacy_vllm.refusal import RefusedError
from pegboard_legacy_vllm.registries import Registered
from pegboard_legacy_vllm.window import Window, real_vllm

__all__ = ["LAYOUT", "adopt"]

LAYOUT = "kv-block-token-head-dim"
"""Of vLLM's FlashAttention, which small connectors are written for."""


def adopt(plugin: ForeignPlugin) -> list[Descriptor]:
    """What stands for it.

    Raises `NotAdoptedError` where vLLM is installed, `RefusedError` for what needs more than there
    is, `PluginError` for what registers nothing.
    """
    if real_vllm():
        raise NotAdoptedError(
            f"vLLM is installed here, so plugins of the group {plugin.group!r} are left to it; "
            "pegboard-legacy-vllm runs them only where it is not"
        )
    registered = Registered()
    window = Window(str(plugin), registered)
    with window:
        _entry_point(plugin)()
        found: list[Descriptor] = [*_aliases(str(plugin), registered), *_connectors(registered)]
    if found:
        return found
    if window.refused:  # the package caught it and went on
        raise PluginError(window.refused[0])
    if registered.configs:
        types = ", ".join(sorted(registered.configs))
        raise RefusedError(
            str(plugin),
            f"registers configuration classes ({types}) and no architecture that they are for",
        )
    if registered.models:
        return []  # vLLM's own, under their own names
    raise RefusedError(str(plugin), "registers no model and no KV connector")


def _entry_point(plugin: ForeignPlugin) -> Callable[[], Any]:
    module, _, attribute = plugin.value.partition(":")
    found: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    if not callable(found):
        raise PluginError(f"the entry point {plugin.value!r} is no function")
    return found  # type: ignore[no-any-return]


def _aliases(package: str, registered: Registered) -> Iterator[ModelAlias]:
    classes = [(cls.__module__, cls.__qualname__) for cls in registered.configs.values()]
    config = f"pegboard_legacy_vllm.configs:read.{path_to(*classes)}" if classes else None
    for architecture, model in registered.models.items():
        known = known_as(package, architecture, model)
        if known != architecture:
            yield ModelAlias(architecture, of=known, config=config)


def _connectors(registered: Registered) -> Iterator[KVConnector]:
    for name, target in registered.connectors.items():
        yield KVConnector(
            name,
            scheduler=f"pegboard_legacy_vllm.scheduler:half.{path_to(target)}",
            worker=f"pegboard_legacy_vllm.worker:half.{path_to(target)}",
            abilities=ConnectorAbilities(asynchronous=True, layouts=(LAYOUT,)),
        )
