"""The API level of each surface.

Level 0: may change with every release, so a plugin of level 0 declares ``PEGBOARD_API = {"model":
0}`` and depends on the exact version of ``pegboard-core``. From level 1 on, the core runs plugins
of level N and N-1. The declaration is a literal in the module that the entry point names; it is
read from the syntax tree, without an import.
"""

from __future__ import annotations

from types import MappingProxyType

__all__ = ["API_LEVELS"]

API_LEVELS = MappingProxyType(
    {
        "alias": 0,
        "attention": 0,
        "checkpoint": 0,
        "command": 0,
        "connector": 0,
        "endpoint": 0,
        "events": 0,
        "executor": 0,
        "logits": 0,
        "model": 0,
        "ops": 0,
        "platform": 0,
        "quant": 0,
        "scheduler": 0,
        "stat_logger": 0,
        "tokenizer": 0,
        "tracer": 0,
    }
)
