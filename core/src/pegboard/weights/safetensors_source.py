"""Checkpoint source ``hf``: a directory with ``config.json`` and safetensors files, as hubs distribute them.

Opening reads the JSON files and every header, so that all later reads are known to lie inside their files. Tensor
bytes are read on demand, with plain reads into fresh memory: nothing stays mapped, so resident memory is what the
caller keeps. No torch here until a tensor is read.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.errors import CheckpointError
from pegboard.text.hf_files import chat_templates_from_dir, tokenizer_spec_from_dir
from pegboard.weights.header import STORED_DTYPES, HeaderEntry, read_header

if TYPE_CHECKING:
    import torch

__all__ = ["SafetensorsCheckpoint", "SafetensorsTensor", "open_directory", "probe"]

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_MAX_JSON_BYTES = 256 * 1024 * 1024


def probe(path: str) -> bool:
    """Whether `path` is for this source: a directory with any of its files, or a file that it must refuse by name.

    A pickle file or directory is claimed too, so that opening it says why it is refused.
    """
    place = Path(path)
    if place.is_dir():
        names = os.listdir(path)
        return "config.json" in names or any(map(_is_weight_file, names))
    return _is_weight_file(place.name) and not _starts_with(path, b"GGUF")


def _is_weight_file(name: str) -> bool:
    return name.endswith((".safetensors", *_PICKLES))


def _starts_with(path: str, magic: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError:
        return False


@attrs.frozen
class SafetensorsTensor:
    """One tensor of one file; see `pegboard.api.checkpoint.StoredTensor`."""

    name: str
    shape: tuple[int, ...]
    stored_type: str
    """A key of `pegboard.weights.header.STORED_DTYPES`."""
    nbytes: int
    file: str
    offset: int
    """First byte in the file."""
    file_size: int
    """The file's size when its header was checked."""

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Rows ``start:stop`` in fresh memory, ``[stop - start, *shape[1:]]`` in the stored dtype.

        A scalar is read whole. Raises `IndexError` for rows that are not there, `CheckpointError` if the file has
        changed or ends early.
        """
        import torch

        rows = self.shape[0] if self.shape else 1
        stop = rows if stop is None else stop
        if not 0 <= start <= stop <= rows:
            raise IndexError(f"rows {start}:{stop} of tensor {self.name!r}, which has {rows}")
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        data = torch.empty(shape, dtype=getattr(torch, STORED_DTYPES[self.stored_type][0]))
        row_bytes = self.nbytes // max(rows, 1)
        if data.numel():
            raw = data.reshape(-1).view(torch.uint8).numpy()
            self._fill(memoryview(raw), self.offset + start * row_bytes)
        return data

    def _fill(self, target: memoryview, offset: int) -> None:
        """Read exactly ``len(target)`` bytes from `offset` on."""
        try:
            with open(self.file, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self.file_size:
                    raise CheckpointError(f"{self.file}: changed while tensor {self.name!r} was read")
                file.seek(offset)
                self._read_all(file, target)
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointError(f"{self.file}: tensor {self.name!r}: {reason}") from error

    def _read_all(self, file: Any, target: memoryview) -> None:
        done = 0
        while done < len(target):  # one read call gives at most 2 GiB
            count = file.readinto(target[done:])
            if not count:
                raise CheckpointError(f"{self.file}: ends inside tensor {self.name!r}")
            done += count


@attrs.frozen
class SafetensorsCheckpoint:
    """An opened directory; see `pegboard.api.checkpoint.Checkpoint`. Plain data: it may be sent to another process."""

    path: str
    architectures: tuple[str, ...]
    config: Mapping[str, Any] = attrs.field(repr=False)
    tensors: Mapping[str, SafetensorsTensor] = attrs.field(repr=False)
    """Empty where the directory has no weight files at all (enough for random weights)."""
    chat_templates: Mapping[str, str] = attrs.field(repr=False)
    generation_defaults: Mapping[str, Any] = attrs.field(repr=False)
    kind: str = "hf"

    def tokenizer(self) -> TokenizerSpec:
        """From ``tokenizer.json`` and its neighbours; raises `CheckpointError` if there is none."""
        return tokenizer_spec_from_dir(self.path)

    def close(self) -> None:
        """Nothing is held open."""


def open_directory(path: str) -> SafetensorsCheckpoint:
    """Open and check the checkpoint in directory `path`.

    Raises `CheckpointError` naming the file and, where there is one, the tensor or key.
    """
    place = Path(path)
    if not place.is_dir():
        raise CheckpointError(_not_a_directory(place))
    config_file = place / "config.json"
    if not config_file.exists():
        raise CheckpointError(f"{config_file}: missing; a checkpoint directory needs its configuration")
    config = _read_object(config_file)
    generation = place / "generation_config.json"
    return SafetensorsCheckpoint(
        path=str(place),
        architectures=_architectures(config, config_file),
        config=config,
        tensors=MappingProxyType(_tensors(place)),
        chat_templates=chat_templates_from_dir(place),
        generation_defaults=_read_object(generation) if generation.exists() else {},
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


def _read_object(file: Path) -> dict[str, Any]:
    """The content of a JSON file that must hold an object."""
    try:
        if file.stat().st_size > _MAX_JSON_BYTES:
            raise CheckpointError(f"{file}: more than {_MAX_JSON_BYTES} bytes; too long for a JSON file")
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: a JSON object is expected, not {type(value).__name__}")
    return value


def _architectures(config: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    names = config.get("architectures")
    good = isinstance(names, list) and names and all(isinstance(name, str) for name in names)
    if not good:
        raise CheckpointError(
            f"{file}: architectures={names!r}; a list with the name of at least one is needed"
        )
    assert isinstance(names, list)
    return tuple(names)


def _tensors(place: Path) -> dict[str, SafetensorsTensor]:
    """Every tensor of the directory's weight files, by name."""
    index = place / _INDEX
    if index.exists():
        return _indexed(index)
    if (place / _SINGLE).exists():
        return dict(_shard(str(place / _SINGLE)))
    _refuse_other_weights(place)
    return {}


def _refuse_other_weights(place: Path) -> None:
    """Say what is wrong with a directory whose weights are there in another form."""
    names = sorted(os.listdir(place))
    safetensors = [name for name in names if name.endswith(".safetensors")]
    if safetensors:
        raise CheckpointError(
            f"{place}: holds {_some(safetensors)} but neither {_SINGLE} nor {_INDEX}, which says "
            "what belongs to the model"
        )
    gguf = [name for name in names if name.endswith(".gguf")]
    if gguf:
        raise CheckpointError(f"{place}: holds no safetensors; to use {gguf[0]}, give that file's path")
    pickles = [name for name in names if _is_pickle(name)]
    if pickles:
        raise CheckpointError(f"{place / pickles[0]}: {_pickle_refusal()}")


def _is_pickle(name: str) -> bool:
    return name.endswith(_PICKLES) and name != "training_args.bin"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _indexed(index: Path) -> dict[str, SafetensorsTensor]:
    """Tensors of the shards that the index names; other files in the directory are ignored."""
    wanted = _weight_map(index)
    shards = {name: _open_shard(index, name, wanted) for name in sorted(set(wanted.values()))}
    _check_unique(index, shards)
    for tensor, shard in wanted.items():
        if tensor not in shards[shard]:
            raise CheckpointError(
                f"{index.parent / shard}: tensor {tensor!r} is missing; {_INDEX} says it is in this file"
            )
    return {name: tensor for shard in shards.values() for name, tensor in shard.items()}


def _weight_map(index: Path) -> dict[str, str]:
    wanted = _read_object(index).get("weight_map")
    if not isinstance(wanted, dict) or not wanted:
        raise CheckpointError(f"{index}: weight_map must be an object of tensor and file names")
    for tensor, shard in wanted.items():
        plain = isinstance(shard, str) and os.path.basename(shard) == shard
        if not plain or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{index}: tensor {tensor!r} is said to be in {shard!r}; allowed are names of "
                "safetensors files in the same directory"
            )
    return wanted


def _open_shard(
    index: Path, name: str, wanted: Mapping[str, str]
) -> dict[str, SafetensorsTensor]:
    file = index.parent / name
    if not file.exists():
        lost = [tensor for tensor, shard in wanted.items() if shard == name]
        raise CheckpointError(
            f"{file}: missing; {_INDEX} names it for {len(lost)} tensors ({_some(lost)})"
        )
    return dict(_shard(str(file)))


def _check_unique(index: Path, shards: Mapping[str, Mapping[str, object]]) -> None:
    """No tensor may be in two shards: which one is meant would be a guess."""
    seen: dict[str, str] = {}
    for shard, tensors in shards.items():
        for tensor in tensors:
            if tensor in seen:
                raise CheckpointError(
                    f"{index.parent}: tensor {tensor!r} is in both {seen[tensor]} and {shard}"
                )
            seen[tensor] = shard


def _shard(path: str) -> Mapping[str, SafetensorsTensor]:
    header = read_header(path)
    return {name: _tensor(entry, path, header.size) for name, entry in header.entries.items()}


def _tensor(entry: HeaderEntry, path: str, size: int) -> SafetensorsTensor:
    return SafetensorsTensor(
        name=entry.name,
        shape=entry.shape,
        stored_type=entry.stored_type,
        nbytes=entry.nbytes,
        file=path,
        offset=entry.offset,
        file_size=size,
    )
