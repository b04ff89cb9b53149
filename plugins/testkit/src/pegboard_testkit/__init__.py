"""Conformance kits for Pegboard plugins, and the toys of `pegboard.testing` hung on the board."""

from __future__ import annotations

from pegboard.api.command import Command
from pegboard.api.connector import KVConnector
from pegboard.api.executor_class import ExecutorClass
from pegboard.api.hooks import hookimpl
from pegboard.api.logits import LogitsProcessor
from pegboard.api.model import ModelFamily
from pegboard.api.platform import Platform
from pegboard.testing.connectors import SCRIPTED_CONNECTOR
from pegboard.testing.families import HYBRID_FAMILY, SCRIPTED_FAMILY, TINY_FAMILY
from pegboard.testing.platforms import NULL_PLATFORM
from pegboard.testing.processors import SCRIPTED_PROCESSORS
from pegboard_testkit.settings import Settings

PEGBOARD_API = {
    "command": 0,
    "connector": 0,
    "executor": 0,
    "logits": 0,
    "model": 0,
    "platform": 0,
}


@hookimpl
def pegboard_settings() -> type[Settings]:
    """How long steps that compute nothing take."""
    return Settings


@hookimpl
def pegboard_executors() -> tuple[ExecutorClass, ...]:
    """The executor ``null``, which computes nothing."""
    return (ExecutorClass("null", "pegboard.testing.null_executor:build_null"),)


@hookimpl
def pegboard_model_families() -> tuple[ModelFamily, ...]:
    """The families ``tiny``, ``tiny-hybrid`` and ``scripted``."""
    return (TINY_FAMILY, HYBRID_FAMILY, SCRIPTED_FAMILY)


@hookimpl
def pegboard_connectors() -> tuple[KVConnector, ...]:
    """The connector ``scripted``."""
    return (SCRIPTED_CONNECTOR,)


@hookimpl
def pegboard_commands() -> tuple[Command, ...]:
    """``pegboard plugins new``."""
    return (Command("plugins new", "Write a small plugin", app="pegboard_testkit.scaffold:new"),)


@hookimpl
def pegboard_logits_processors() -> tuple[LogitsProcessor, ...]:
    """The processors ``scripted-gap``, ``scripted-parity`` and ``scripted-sharpness``."""
    return SCRIPTED_PROCESSORS


@hookimpl
def pegboard_platforms() -> tuple[Platform, ...]:
    """The platform ``null``, used only where it is asked for or no other is usable."""
    return (NULL_PLATFORM,)
