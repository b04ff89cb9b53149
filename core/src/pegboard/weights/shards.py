"""The safetensors files of a directory, and reading one tensor of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.errors import CheckpointError
from pegboard.weights.header import STORED_DTYPES, HeaderEntry, read_header
from pegboard.weights.jsonfile import read_object

if TYPE_CHECKING:
    import torch

__all__ = ["INDEX_NAME", "SafetensorsTensor", "name_some", "read_index", "read_shard"]

INDEX_NAME = "model.safetensors.index.json"


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

        A scalar is read whole. Raises `IndexError` for rows that are not there, `CheckpointError`
        if the file has changed or ends early.
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
            raw: Any = data.reshape(-1).view(torch.uint8).numpy()
            self._fill(memoryview(raw), self.offset + start * row_bytes)
        return data

    def _fill(self, target: memoryview, offset: int) -> None:
        """Read exactly ``len(target)`` bytes from `offset` on."""
        try:
            with open(self.file, "rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != self.file_size:
                    raise CheckpointError(
                        f"{self.file}: changed while tensor {self.name!r} was read"
                    )
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


def name_some(names: Sequence[str]) -> str:
    """The first few of `names`, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def read_index(index: Path) -> dict[str, SafetensorsTensor]:
    """Tensors of the shards that the index names; other files in the directory are ignored."""
    wanted = _weight_map(index)
    shards = {name: _open_shard(index, name, wanted) for name in sorted(set(wanted.values()))}
    _check_unique(index, shards)
    for tensor, shard in wanted.items():
        if tensor not in shards[shard]:
            raise CheckpointError(
                f"{index.parent / shard}: tensor {tensor!r} is missing; {INDEX_NAME} says it is in "
                "this file"
            )
    return {name: tensor for shard in shards.values() for name, tensor in shard.items()}


def _weight_map(index: Path) -> dict[str, str]:
    wanted = read_object(index).get("weight_map")
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


def _open_shard(index: Path, name: str, wanted: Mapping[str, str]) -> dict[str, SafetensorsTensor]:
    file = index.parent / name
    if not file.exists():
        lost = [tensor for tensor, shard in wanted.items() if shard == name]
        raise CheckpointError(
            f"{file}: missing; {INDEX_NAME} names it for {len(lost)} tensors ({name_some(lost)})"
        )
    return dict(read_shard(str(file)))


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


def read_shard(path: str) -> Mapping[str, SafetensorsTensor]:
    """All tensors of one file, its header checked."""
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
