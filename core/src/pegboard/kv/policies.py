"""The rules of each kind of KV group, by the kind's name."""

from __future__ import annotations

from pegboard.api.kv import KVGroup
from pegboard.errors import UnsupportedError
from pegboard.kv.paged import (
    ChunkedPolicy,
    CrossPolicy,
    EncoderOnlyPolicy,
    PagedPolicy,
    SlidingPolicy,
)
from pegboard.kv.policy import GroupPolicy
from pegboard.kv.states import StatePolicy

__all__ = ["make_policy"]

_KINDS: dict[str, type[PagedPolicy] | type[StatePolicy]] = {
    "full": PagedPolicy,
    "latent": PagedPolicy,
    "sliding": SlidingPolicy,
    "chunked": ChunkedPolicy,
    "recurrent": StatePolicy,
    "cross": CrossPolicy,
    "encoder-only": EncoderOnlyPolicy,
}


def make_policy(group: KVGroup, unit: int) -> GroupPolicy:
    """The policy for a group's kind, with hash units of `unit` tokens.

    `UnsupportedError` names a kind that is not built.
    """
    kind = group.spec.kind
    if kind not in _KINDS:
        raise UnsupportedError(
            f"KV group {group.index} has kind={kind!r}; built are: " + ", ".join(_KINDS)
        )
    return _KINDS[kind](group, unit)
