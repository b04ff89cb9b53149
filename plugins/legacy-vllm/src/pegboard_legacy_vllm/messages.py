"""What the scheduler half tells the worker half in a step: plain data around a pickle.

A connector's metadata is an object of a class of its own, which vLLM pickles too. Both halves are
of one engine, so the pickle comes from where this code comes from.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pegboard.api.connector import Load

__all__ = ["LoadNote", "StepNote"]


class LoadNote(msgspec.Struct, frozen=True, array_like=True):
    """A load that begins with this step."""

    load_id: int
    request_id: str
    now: bool
    blocks: tuple[int, ...]
    known: bool
    """The connector was told of its blocks; else nobody is going to fill them."""

    @classmethod
    def of(cls, load: Load, known: bool) -> LoadNote:
        """Of the core's."""
        blocks = tuple(piece.block for piece in load.pieces)
        return cls(load.load_id, load.request_id, load.now, blocks, known)


class StepNote(msgspec.Struct, frozen=True):
    """One step."""

    pickled: bytes
    """The connector's own metadata."""
    rows: bool
    """Something is computed."""
    loads: tuple[LoadNote, ...] = ()
    kept: dict[str, int] = {}
    """`Finished.keep_id` by request, of blocks that are kept from now on."""
    finished: tuple[str, ...] = ()

    def plain(self) -> Any:
        """As plain data."""
        return msgspec.to_builtins(self, builtin_types=(bytes,))

    @classmethod
    def read(cls, plain: Any) -> StepNote:
        """From what `plain` gave."""
        return msgspec.convert(plain, cls, builtin_types=(bytes,))
