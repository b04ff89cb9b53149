"""Split files: ``NAME-00001-of-00003.gguf`` and its fellows, opened by the first part.

The first part holds the metadata. Every part says in ``split.no`` (from 0), ``split.count`` and
``split.tensors.count`` which part it is, how many there are and how many tensors they hold
together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import attrs

from pegboard.errors import CheckpointError
from pegboard_quant_gguf.metadata import Metadata
from pegboard_quant_gguf.reader import GgufFile, GgufTensor, read_gguf

__all__ = ["GgufSet", "read_gguf_set"]

MAX_PARTS = 65535
_PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@attrs.frozen(eq=False)
class GgufSet:
    """A model in one file or in several parts."""

    parts: tuple[GgufFile, ...]
    tensors: Mapping[str, GgufTensor]

    @property
    def metadata(self) -> Metadata:
        """Metadata of the first part."""
        return self.parts[0].metadata

    def close(self) -> None:
        """Close all parts."""
        for part in self.parts:
            part.close()


def read_gguf_set(path: str | Path) -> GgufSet:
    """Open a file, or all parts of a split file by its first part.

    Raises `CheckpointError` naming the part that is missing, that is the wrong one to open, or that
    disagrees with the first one.
    """
    parts = [read_gguf(path)]
    try:
        count = _part_count(parts[0])
        if count > 1:
            for number, name in enumerate(_part_paths(parts[0], count)[1:], start=1):
                parts.append(_open_part(name, number, count, parts[0]))
        return GgufSet(tuple(parts), MappingProxyType(_join(parts, count)))
    except BaseException:
        for part in parts:
            part.close()
        raise


def _part_count(first: GgufFile) -> int:
    count = first.metadata.typed("split.count", int, 1)
    number = first.metadata.typed("split.no", int, 0)
    if not 0 <= count <= MAX_PARTS or not 0 <= number < max(count, 1):
        raise CheckpointError(
            f"{first.path}: keys 'split.no' = {number} and 'split.count' = {count} make no sense"
        )
    if number:
        raise CheckpointError(
            f"{first.path}: is part {number + 1} of {count} of a split file; open the first part: "
            f"{_first_name(first)}"
        )
    return max(count, 1)


def _first_name(part: GgufFile) -> str:
    match = _PART_NAME.fullmatch(part.path.name)
    return (
        f"{match['stem']}-00001-of-{match['count']}.gguf"
        if match
        else "the one whose name has 00001-of-…"
    )


def _part_paths(first: GgufFile, count: int) -> list[Path]:
    """Paths of all parts. The missing ones are looked for before anything is read."""
    match = _PART_NAME.fullmatch(first.path.name)
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise CheckpointError(
            f"{first.path}: is part 1 of {count} of a split file and must be called "
            f"NAME-00001-of-{count:05d}.gguf, "
            "next to the other parts"
        )
    paths = [
        first.path.with_name(f"{match['stem']}-{n:05d}-of-{count:05d}.gguf")
        for n in range(1, count + 1)
    ]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{first.path}: part {missing[0]}{more} is missing next to it")
    return paths


def _open_part(path: Path, number: int, count: int, first: GgufFile) -> GgufFile:
    part = read_gguf(path)
    found = (part.metadata.typed("split.no", int, 0), part.metadata.typed("split.count", int, 1))
    if found != (number, count):
        part.close()
        raise CheckpointError(
            f"{path}: says it is part {found[0] + 1} of {found[1]}, but its name and "
            f"{first.path.name} make it part "
            f"{number + 1} of {count}"
        )
    return part


def _join(parts: list[GgufFile], count: int) -> dict[str, GgufTensor]:
    tensors: dict[str, GgufTensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise CheckpointError(
                    f"{part.path}: tensor {name!r} is also in {tensors[name].file}"
                )
            tensors[name] = tensor
    total = parts[0].metadata.typed("split.tensors.count", int)
    if count > 1 and total is not None and total != len(tensors):
        raise CheckpointError(
            f"{parts[0].path}: key 'split.tensors.count' is {total}, but the {count} parts hold "
            f"{len(tensors)} tensors"
        )
    return tensors
