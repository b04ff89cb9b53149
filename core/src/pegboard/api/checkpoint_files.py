"""An opened checkpoint and what is in it. Part of `pegboard.api.checkpoint`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    import torch


__all__ = ["Checkpoint", "StoredTensor", "TokenizerSpec"]


@attrs.frozen
class TokenizerSpec:
    """All that is needed to build a tokeniser, in any process, from data alone."""

    json: str
    """Content of a ``tokenizer.json`` (the serialisation of the *tokenizers* library)."""
    source: str
    """File it came from, for error messages."""
    vocab_size: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    add_bos: bool | None = None
    """True, False, or None: the checkpoint does not say and the post-processor of `json`
    decides."""
    add_eos: bool | None = None
    special_tokens: Mapping[str, str] = attrs.field(factory=dict)
    """Texts that chat templates may name, e.g. ``{"bos_token": "<s>"}``."""
    kind: str = "hf"
    """The tokeniser that reads `json`, which may be any text for another than the core's own; see
    `pegboard.api.tokenizer`."""


class StoredTensor(Protocol):
    """One tensor of a checkpoint. Reading is stateless and may happen from several threads."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, outermost axis first, whatever the file's own order."""
        ...

    @property
    def stored_type(self) -> str:
        """``"F32"``, ``"BF16"``, ``"Q4_1"`` …: a key of `PLAIN_TYPES` or a type that a quantisation
        claims."""
        ...

    @property
    def nbytes(self) -> int: ...

    @property
    def file(self) -> str: ...

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows ``start:stop`` of the outermost axis, in fresh host memory.

        A type that torch has (plain ones, integers, 8-bit floats) gives ``[stop - start,
        *shape[1:]]`` of its own dtype (a scalar has no rows: it is read whole); a block type gives
        ``uint8 [stop - start, bytes per row]``. Raises `CheckpointError` if the file ends early,
        `IndexError` for rows that are not there.
        """
        ...


class Checkpoint(Protocol):
    """An opened checkpoint."""

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str:
        """The source's name: ``"hf"`` or ``"gguf"``."""
        ...

    @property
    def architectures(self) -> tuple[str, ...]:
        """Architecture names as the file has them, the preferred first."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The raw configuration: ``config.json`` as parsed, or the metadata of a GGUF file without
        token lists."""
        ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """Template sources by name; the usual one is called ``"default"``."""
        ...

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling defaults and end ids that the model's authors ship
        (``generation_config.json``)."""
        ...

    def tokenizer(self) -> TokenizerSpec:
        """The tokeniser. Raises `UnsupportedError` if there is none or its kind is not supported
        (the model then takes token ids only), `CheckpointError` if it is there and broken."""
        ...

    def close(self) -> None: ...
