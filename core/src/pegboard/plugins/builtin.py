"""What the core itself hangs on the board, through the same registries as plugins."""

from __future__ import annotations

from pegboard.api.checkpoint import CheckpointSource
from pegboard.api.command import Command
from pegboard.api.descriptor import Descriptor
from pegboard.api.executor_class import ExecutorClass
from pegboard.api.scheduler_class import SchedulerClass
from pegboard.api.tokenizer import TokenizerClass
from pegboard.cli.table import COMMANDS

__all__ = ["core_descriptors"]


def core_descriptors() -> tuple[tuple[str, Descriptor], ...]:
    """(surface, descriptor) pairs, in order."""
    commands = (("command", Command(entry.name, entry.help, entry.target)) for entry in COMMANDS)
    scheduler = SchedulerClass(
        "token-budget", "pegboard.scheduler:build_scheduler", max_in_flight=2, transfers=True
    )
    tokenizer = TokenizerClass("hf", "pegboard.text.tokenizer:build_own")
    return (
        *commands,
        ("checkpoint", _safetensors()),
        ("executor", ExecutorClass("local", "pegboard.runner.local:build_local")),
        ("executor", ExecutorClass("ranks", "pegboard.runner.ranks:build_ranks", "several")),
        ("scheduler", scheduler),
        ("tokenizer", tokenizer),
    )


def _safetensors() -> CheckpointSource:
    """Directories of safetensors files with a ``config.json``."""
    return CheckpointSource(
        name="hf",
        probe="pegboard.weights.safetensors_source:probe",
        open="pegboard.weights.safetensors_source:open_directory",
    )
