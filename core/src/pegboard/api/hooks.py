"""Every hook that a plugin module may implement. This page is the manual.

A plugin is a distribution with an entry point in one of the groups ``pegboard.models``,
``pegboard.quant``, ``pegboard.attention``, ``pegboard.platforms``, ``pegboard.connectors`` or
``pegboard.plugins`` (everything else). The entry point names a module; the module's functions
marked with `hookimpl` are its hooks. A module may implement any of them, whatever its group.

Rules for all hooks:

* Called once per process at start-up, in the front end and in each engine process; never in the
step loop.
* Must be quick and must not import torch: return descriptors with lazy references.
* May take fewer arguments than the specification, also none.
* May fail: the plugin is then rolled back as a whole and shown as failed; it is fatal only if the
run needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from pegboard.api.alias import ModelAlias
    from pegboard.api.attention import AttentionBackend
    from pegboard.api.checkpoint import CheckpointSource
    from pegboard.api.command import Command
    from pegboard.api.connector import KVConnector
    from pegboard.api.context import PluginContext
    from pegboard.api.endpoint import Endpoint
    from pegboard.api.events import EventPublisher
    from pegboard.api.executor_class import ExecutorClass
    from pegboard.api.foreign import ForeignPlugin
    from pegboard.api.logits import LogitsProcessor
    from pegboard.api.model import ModelFamily
    from pegboard.api.ops import OpVersion
    from pegboard.api.platform import Platform
    from pegboard.api.quant import QuantFormat
    from pegboard.api.scheduler import SchedulerClass
    from pegboard.api.stat_logger import StatLogger
    from pegboard.api.tokenizer import TokenizerClass
    from pegboard.api.tracer import Tracer

__all__ = ["HOOK_SURFACES", "SETTINGS_HOOK", "Hooks", "hookimpl", "hookspec"]

hookspec = pluggy.HookspecMarker("pegboard")
hookimpl = pluggy.HookimplMarker("pegboard")

HOOK_SURFACES = {
    "pegboard_attention_backends": "attention",
    "pegboard_checkpoint_sources": "checkpoint",
    "pegboard_commands": "command",
    "pegboard_connectors": "connector",
    "pegboard_endpoints": "endpoint",
    "pegboard_event_publishers": "events",
    "pegboard_executors": "executor",
    "pegboard_logits_processors": "logits",
    "pegboard_model_aliases": "alias",
    "pegboard_model_families": "model",
    "pegboard_ops": "ops",
    "pegboard_platforms": "platform",
    "pegboard_quant_formats": "quant",
    "pegboard_schedulers": "scheduler",
    "pegboard_stat_loggers": "stat_logger",
    "pegboard_tokenizers": "tokenizer",
    "pegboard_tracers": "tracer",
}
"""Which surface each hook registers into."""

SETTINGS_HOOK = "pegboard_settings"
"""The hook that registers nothing."""


class Hooks(Protocol):
    """The hook specifications."""

    @hookspec(firstresult=True)
    def pegboard_settings(self, ctx: PluginContext) -> type[Any] | None:
        """The attrs class of the plugin's own settings, called before its other hooks.

        Its fields are the keys that ``plugin_config={id: {key: value}}`` may have. Values are
        structured by the types of the fields, strictly; unknown keys and wrong types are refused
        by name, and so is what a validator of the class refuses. The instance is ``ctx.settings``
        in the other hooks and `settings` of the object that each surface hands to the plugin's
        code, in every process. A field without a default is a key that must be given.
        """

    @hookspec
    def pegboard_adopt(self, ctx: PluginContext, plugin: ForeignPlugin) -> Iterable[Any]:
        """What stands for a plugin of another program, see `pegboard.api.foreign`; `ctx` is its."""

    @hookspec
    def pegboard_model_families(self, ctx: PluginContext) -> Iterable[ModelFamily]:
        """Model families: configuration, modules and weight maps for a set of architectures."""

    @hookspec
    def pegboard_model_aliases(self, ctx: PluginContext) -> Iterable[ModelAlias]:
        """Further names for architectures that a model family has."""

    @hookspec
    def pegboard_quant_formats(self, ctx: PluginContext) -> Iterable[QuantFormat]:
        """Number formats of stored weights and the methods that compute with them."""

    @hookspec
    def pegboard_checkpoint_sources(self, ctx: PluginContext) -> Iterable[CheckpointSource]:
        """Readers of checkpoint files."""

    @hookspec
    def pegboard_attention_backends(self, ctx: PluginContext) -> Iterable[AttentionBackend]:
        """Attention kernels over the paged KV cache."""

    @hookspec
    def pegboard_platforms(self, ctx: PluginContext) -> Iterable[Platform]:
        """Devices."""

    @hookspec
    def pegboard_connectors(self, ctx: PluginContext) -> Iterable[KVConnector]:
        """Ways for keys and values to come from outside and go outside."""

    @hookspec
    def pegboard_ops(self, ctx: PluginContext) -> Iterable[OpVersion]:
        """Faster versions of the named ops of `pegboard.nn`."""

    @hookspec
    def pegboard_event_publishers(self, ctx: PluginContext) -> Iterable[EventPublisher]:
        """Publishers of what becomes of the blocks of the prefix cache."""

    @hookspec
    def pegboard_schedulers(self, ctx: PluginContext) -> Iterable[SchedulerClass]:
        """Schedulers."""

    @hookspec
    def pegboard_logits_processors(self, ctx: PluginContext) -> Iterable[LogitsProcessor]:
        """Logits processors, for requests that ask for them."""

    @hookspec
    def pegboard_executors(self, ctx: PluginContext) -> Iterable[ExecutorClass]:
        """Executors."""

    @hookspec
    def pegboard_stat_loggers(self, ctx: PluginContext) -> Iterable[StatLogger]:
        """Loggers of what the engine does and of what becomes of requests."""

    @hookspec
    def pegboard_tokenizers(self, ctx: PluginContext) -> Iterable[TokenizerClass]:
        """Kinds of tokenisers."""

    @hookspec
    def pegboard_tracers(self, ctx: PluginContext) -> Iterable[Tracer]:
        """Senders of a span for each request."""

    @hookspec
    def pegboard_endpoints(self, ctx: PluginContext) -> Iterable[Endpoint]:
        """Routes of the HTTP server."""

    @hookspec
    def pegboard_commands(self, ctx: PluginContext) -> Iterable[Command]:
        """Further sub-commands of ``pegboard``."""
