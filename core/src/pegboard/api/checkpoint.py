"""Surface *checkpoint source*: reading a model's files.

Called by: the front end (`config`, tokeniser, templates) and by the weight loader in the worker
process (tensors). A source opens read-only, checks everything it will later rely on, and reads
tensor bytes only on demand, so that a model larger than the host's memory can be streamed to a
device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.checkpoint_files import Checkpoint, StoredTensor, TokenizerSpec

__all__ = ["PLAIN_TYPES", "Checkpoint", "CheckpointSource", "StoredTensor", "TokenizerSpec"]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "checkpoint_files")

PLAIN_TYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Stored types that need no quantisation plugin, with bytes per element."""


@attrs.frozen
class CheckpointSource:
    """Descriptor of a kind of checkpoint.

    `probe` refers to a function ``(path: str) -> bool`` that says, from names and at most a few
    bytes, whether this source is the one for `path` (a file or a directory that exists). `open`
    refers to ``(path: str) -> Checkpoint``, with `takes_settings` to ``(path: str, settings:
    Any) -> Checkpoint``. Exactly one source may answer yes.
    """

    name: str
    """Kind of the checkpoint, ``"hf"`` or ``"gguf"``; families key their name maps by it."""
    probe: LazyRef = attrs.field(converter=lazy_ref)
    open: LazyRef = attrs.field(converter=lazy_ref)
    stored_types: tuple[str, ...] = ()
    """Stored types that only this kind of file has, for ``pegboard plugins list``."""
    takes_settings: bool = False
    """`open` is given the plugin's own (`pegboard.api.hooks.Hooks.pegboard_settings`)."""

    def claims(self) -> tuple[str, ...]:
        return ()
