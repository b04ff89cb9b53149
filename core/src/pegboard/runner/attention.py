"""What a step needs of a KV group: its kernel, and who stores keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from pegboard.api.attention import (
    AttentionBackend,
    AttentionKernel,
    AttentionStep,
    WarmingKernel,
)
from pegboard.api.kv import KVLayout
from pegboard.api.model import GroupBatch

__all__ = ["GroupAttention", "capturable", "plan_groups"]


@attrs.frozen(eq=False)
class GroupAttention:
    """The kernel of one group and where it came from."""

    backend: AttentionBackend
    kernel: AttentionKernel
    layout: KVLayout
    warming: tuple[WarmingKernel, ...] = ()
    """Those that build something at first use; two backends may share a group."""


def plan_groups(
    attention: Sequence[GroupAttention], steps: Sequence[Any]
) -> tuple[GroupBatch, ...]:
    """Let each group's kernel plan its part of a step."""
    return tuple(_plan(group, step) for group, step in zip(attention, steps, strict=True))


def _plan(group: GroupAttention, step: Any) -> GroupBatch:
    stores = not group.backend.fused_kv_write and isinstance(step, AttentionStep)
    metadata = group.kernel.plan(step)
    return GroupBatch(group.kernel, metadata, step.slots if stores else None)


def capturable(attention: Sequence[GroupAttention]) -> bool:
    """Every group's calls may be recorded together with the whole step around them."""
    return all(group.backend.capture == "whole" for group in attention)
