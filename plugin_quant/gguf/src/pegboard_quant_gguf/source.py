"""The checkpoint source ``gguf``: a model, its tokeniser and its chat templates in one file (or
its parts)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from pegboard.api.checkpoint import PLAIN_TYPES, TokenizerSpec
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard_quant_gguf.metadata import Metadata
from pegboard_quant_gguf.reader import MAGIC, GgufTensor
from pegboard_quant_gguf.split import GgufSet, read_gguf_set
from pegboard_quant_gguf.tokenizer import tokenizer_spec
from pegboard_quant_gguf.types import SUPPORTED_TYPES

__all__ = ["GgufCheckpoint", "open_checkpoint", "probe"]

_TEMPLATE = "tokenizer.chat_template"
_SAMPLING = {
    "temp": ("temperature", float),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "top_k": ("top_k", int),
}
"""Sampling defaults that a file may carry as ``general.sampling.<key>``."""


def probe(path: str) -> bool:
    """True for a file that starts with the magic or is called ``*.gguf`` (a broken one gets a
    good error when opened)."""
    place = Path(path)
    if place.is_dir() or not place.exists():
        return False
    if place.suffix.lower() == ".gguf":
        return True
    try:
        if not place.is_file():  # opening a FIFO would wait for a writer
            return False
        with place.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_checkpoint(path: str) -> GgufCheckpoint:
    """Open a file, or a split file by its first part.

    Raises `CheckpointError` for every fault of the file, `UnsupportedError` naming tensor and type
    if a tensor is of a type that this version does not compute with.
    """
    files = read_gguf_set(path)
    try:
        _check_types(files)
        return GgufCheckpoint(files, _architecture(files))
    except BaseException:
        files.close()
        raise


def _check_types(files: GgufSet) -> None:
    for tensor in files.tensors.values():
        if tensor.stored_type not in SUPPORTED_TYPES and tensor.stored_type not in PLAIN_TYPES:
            raise UnsupportedError(
                f"{tensor.file}: tensor {tensor.name!r} is stored as {tensor.stored_type}; "
                f"{tensor.stored_type} is not "
                f"supported by this version (supported: {', '.join(SUPPORTED_TYPES)})"
            )


def _architecture(files: GgufSet) -> str:
    name = files.metadata.typed("general.architecture", str)
    if not name:
        raise CheckpointError(
            f"{files.parts[0].path}: key 'general.architecture' is missing or empty"
        )
    return name


class _Config(Mapping[str, Any]):
    """Metadata without the tokeniser's keys, which hold most of a header."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._keys = tuple(key for key in metadata if not key.startswith("tokenizer."))

    def __getitem__(self, key: str) -> Any:
        if key.startswith("tokenizer."):
            raise KeyError(key)
        return self._metadata[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@attrs.frozen(eq=False)
class GgufCheckpoint:
    """An opened model. Files stay open until `close`."""

    files: GgufSet
    architecture: str

    @property
    def path(self) -> str:
        """The file that was opened."""
        return str(self.files.parts[0].path)

    @property
    def kind(self) -> str:
        """``"gguf"``"""
        return "gguf"

    @property
    def architectures(self) -> tuple[str, ...]:
        """The value of ``general.architecture``."""
        return (self.architecture,)

    @property
    def config(self) -> Mapping[str, Any]:
        """The metadata as the file has them (``llama.block_count`` …), the tokeniser's keys left
        out."""
        return _Config(self.files.metadata)

    @property
    def tensors(self) -> Mapping[str, GgufTensor]:
        """Every tensor of every part."""
        return self.files.tensors

    @property
    def chat_templates(self) -> Mapping[str, str]:
        """``tokenizer.chat_template`` as ``"default"``, ``tokenizer.chat_template.NAME`` as
        ``NAME``; may be empty."""
        metadata = self.files.metadata
        templates = {}
        for key in metadata:
            if key == _TEMPLATE or key.startswith(_TEMPLATE + "."):
                templates[key[len(_TEMPLATE) + 1 :] or "default"] = metadata.typed(key, str, "")
        return MappingProxyType(templates)

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """What the file recommends under ``general.sampling.``, by the names of
        `SamplingParams`."""
        metadata = self.files.metadata
        found = {
            name: metadata.typed(f"general.sampling.{key}", kind)
            for key, (name, kind) in _SAMPLING.items()
        }
        return MappingProxyType({name: value for name, value in found.items() if value is not None})

    def tokenizer(self) -> TokenizerSpec:
        """The embedded tokeniser. Raises `UnsupportedError` if there is none or its kind is not
        supported."""
        return tokenizer_spec(self.files.metadata, self.path)

    def close(self) -> None:
        """Close all files; tensors cannot be read afterwards."""
        self.files.close()
