"""Checkpoint source ``hf``: a directory with ``config.json`` and safetensors files, as hubs
distribute them.

Opening reads the JSON files and every header, so that all later reads are known to lie inside their
files. Tensor bytes are read on demand, with plain reads into fresh memory: nothing stays mapped, so
resident memory is what the caller keeps. No torch here until a tensor is read.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError
from pegboard.text.hf_files import chat_templates_from_dir, tokenizer_spec_from_dir
from pegboard.weights.jsonfile import read_object
from pegboard.weights.shards import INDEX_NAME, SafetensorsTensor, name_some, read_index, read_shard

__all__ = ["SafetensorsCheckpoint", "open_directory", "probe"]

_SINGLE = "model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def probe(path: str) -> bool:
    """Whether `path` is for this source: a directory with any of its files, or a file that it must
    refuse by name.

    A pickle file or directory is claimed too, so that opening it says why it is refused.
    """
    place = Path(path)
    if place.is_dir():
        names = os.listdir(path)
        gguf = any(name.endswith(".gguf") for name in names)
        weights = any(map(_is_safetensors if gguf else _is_weight_file, names))
        return weights or "config.json" in names
    return _is_weight_file(place.name) and not _starts_with(path, b"GGUF")


def _is_safetensors(name: str) -> bool:
    return name.endswith(".safetensors")


def _is_weight_file(name: str) -> bool:
    return name.endswith((".safetensors", *_PICKLES))


def _starts_with(path: str, magic: bytes) -> bool:
    try:
        if not os.path.isfile(path):  # opening a FIFO would wait for a writer
            return False
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


@attrs.frozen
class SafetensorsCheckpoint:
    """An opened directory; see `pegboard.api.checkpoint.Checkpoint`. Plain data: it may be sent to
    another process."""

    path: str
    architectures: tuple[str, ...]
    config: Mapping[str, Any] = attrs.field(repr=False)
    tensors: Mapping[str, SafetensorsTensor] = attrs.field(repr=False)
    """Empty where the directory has no weight files at all (enough for random weights)."""
    chat_templates: Mapping[str, str] = attrs.field(repr=False)
    generation_defaults: Mapping[str, Any] = attrs.field(repr=False)
    kind: str = "hf"

    def tokenizer(self) -> TokenizerSpec:
        """From ``tokenizer.json`` and its neighbours; `UnsupportedError` if there is none."""
        return tokenizer_spec_from_dir(self.path)

    def close(self) -> None:
        """Nothing is held open."""


def open_directory(path: str) -> SafetensorsCheckpoint:
    """Open and check the checkpoint in directory `path`.

    Raises `CheckpointError` naming the file and, where there is one, the tensor or key.
    """
    try:
        return _open(Path(path))
    except OSError as error:  # a folder that may not be listed, a file that may not be looked at
        raise CheckpointError(
            f"{error.filename or path}: cannot be read: {error.strerror or error}"
        ) from error


def _open(place: Path) -> SafetensorsCheckpoint:
    if not place.is_dir():
        raise CheckpointError(_not_a_directory(place))
    if not _has_weights(place):
        _refuse_other_weights(place)
    config_file = place / "config.json"
    if not config_file.exists():
        raise CheckpointError(
            f"{config_file}: missing; a checkpoint directory needs its configuration"
        )
    config = read_object(config_file)
    generation = place / "generation_config.json"
    return SafetensorsCheckpoint(
        path=str(place),
        architectures=_architectures(config, config_file),
        config=config,
        tensors=_tensors(place),
        chat_templates=chat_templates_from_dir(place),
        generation_defaults=read_object(generation) if generation.exists() else {},
    )


def _not_a_directory(place: Path) -> str:
    if place.name.endswith(".safetensors"):
        return f"{place}: give the directory that holds this file and its config.json"
    return f"{place}: {_pickle_refusal()}"


def _pickle_refusal() -> str:
    return (
        "pickle checkpoints are refused, because reading one can run any code it holds; "
        "convert it to safetensors (transformers' save_pretrained does)"
    )


def _architectures(config: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    names = config.get("architectures")
    good = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if not good:
        raise CheckpointError(
            f"{file}: architectures={reprlib.repr(names)}; a list with the name of at least one is "
            "needed"
        )
    assert isinstance(names, list)
    return tuple(names)


def _tensors(place: Path) -> dict[str, SafetensorsTensor]:
    """Every tensor of the directory's weight files, by name."""
    index = place / INDEX_NAME
    if index.exists():
        return read_index(index)
    if (place / _SINGLE).exists():
        return dict(read_shard(str(place / _SINGLE)))
    return {}


def _has_weights(place: Path) -> bool:
    return (place / INDEX_NAME).exists() or (place / _SINGLE).exists()


def _refuse_other_weights(place: Path) -> None:
    """Say what is wrong with a directory whose weights are there in another form."""
    names = sorted(os.listdir(place))
    safetensors = list(filter(_is_safetensors, names))
    if safetensors:
        raise CheckpointError(
            f"{place}: holds {name_some(safetensors)} but neither {_SINGLE} nor {INDEX_NAME}, "
            "which says what belongs to the model"
        )
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        raise CheckpointError(
            f"{place}: holds no safetensors; to use {gguf[0]}, give that file's path"
        )
    pickles = [name for name in names if _is_pickle(name)]
    if pickles:
        raise CheckpointError(f"{place / pickles[0]}: {_pickle_refusal()}")


def _is_pickle(name: str) -> bool:
    return name.endswith(_PICKLES) and name != "training_args.bin"
