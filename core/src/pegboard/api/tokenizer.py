"""Surface *tokenizer*: text to token ids and back.

A checkpoint source gives a `TokenizerSpec`, plain data; its `kind` names the tokeniser that reads
it. The core's own is called ``hf`` and reads a ``tokenizer.json``. A plugin may bring another kind,
and find its files in checkpoints in which the source knows no tokeniser (`TokenizerClass.find`).
``tokenizer_mode`` asks for one by name, whatever the specification says.

Called by: the front end, from several threads at once. Nothing here may import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.tokenizer_text import Detokenizer, TextTokenizer, TokenizerContext

__all__ = ["Detokenizer", "TextTokenizer", "TokenizerClass", "TokenizerContext"]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "tokenizer_text")


@attrs.frozen
class TokenizerClass:
    """Descriptor of a kind of tokeniser."""

    name: str
    build: LazyRef = attrs.field(converter=lazy_ref)
    """A callable ``(TokenizerContext) -> TextTokenizer``. Raises `CheckpointError` naming the file
    for a specification that is damaged, `UnsupportedError` for one that it cannot serve."""
    find: LazyRef | None = attrs.field(default=None, converter=attrs.converters.optional(lazy_ref))
    """A callable ``(path: str) -> TokenizerSpec | None`` that looks for the files of this kind in a
    checkpoint (a file or a folder). Asked where the source has none, and by ``tokenizer_mode``."""

    def claims(self) -> tuple[str, ...]:
        return ()
