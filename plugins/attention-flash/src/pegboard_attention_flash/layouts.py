"""Storage layouts: pages are read by strides, so any order of axes with whole heads serves."""

from __future__ import annotations

from pegboard.api.kv import KVLayout

__all__ = ["LAYOUTS"]

LAYOUTS = (
    KVLayout("block-kv-head-token-dim", ("block", "kv", "head", "token", "dim")),
    KVLayout("block-kv-token-head-dim", ("block", "kv", "token", "head", "dim")),
    KVLayout("kv-block-head-token-dim", ("kv", "block", "head", "token", "dim")),
    KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim")),
)
"""In order of preference. In the first two a page is one run of bytes, so groups of any kind share
memory."""
