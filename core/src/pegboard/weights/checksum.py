"""Checksums of stored tensors, made while they are read.

They tell models apart whose files differ anywhere, at the cost of a few passes over what was just
read. They are not cryptographic: who wants two models to have one checksum can have it.

A tensor's rows are cut into cells of at most `_WORDS` 32-bit words, the last of a row padded with
zeros. A cell's sum is that of its words, each times an odd 64-bit number that goes with its place
(multiply-shift hashing, M. Dietzfelbinger et al. 1997); it is scrambled together with the cell's
place in the tensor, and the tensor's checksum is the sum of all cells. Everything wraps around at
64 bits. So neither the order in which rows come nor the device matters.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping

import attrs
import torch

from pegboard.api.checkpoint import StoredTensor

__all__ = ["WatchedTensor", "WeightSums", "cell_sum"]

_WORDS = 1 << 11
_AT_ONCE = {"cpu": 1 << 17}
_MANY = 1 << 24
"""Words summed at once: what a CPU's cache holds, and what keeps a GPU busy."""
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


class WeightSums:
    """The checksums of all tensors that are read through it. One thread."""

    def __init__(self, device: torch.device) -> None:
        """Sums are made on `device`."""
        self._device = device
        self._factors = _scrambled(torch.arange(_WORDS, device=device)).bitwise_or_(1)
        self._watched: list[WatchedTensor] = []

    def watch(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """The same tensors; what is read of these is summed."""
        watched = {name: WatchedTensor(tensor, self) for name, tensor in tensors.items()}
        self._watched += watched.values()
        return dict(watched)

    def digest(self) -> str:
        """Of every tensor that was read, in hexadecimal; what is missing of these is read now."""
        digest = hashlib.sha256()
        for tensor in sorted(self._watched, key=lambda tensor: tensor.name):
            if tensor.spans:
                facts = [tensor.name, list(tensor.shape), tensor.stored_type, tensor.nbytes]
                digest.update(json.dumps([*facts, tensor.whole()]).encode())
        return digest.hexdigest()

    def of_rows(self, first: int, rows: torch.Tensor) -> int:
        """The sum of `rows`, the tensor's rows from `first` on."""
        return cell_sum(first, rows.to(self._device), self._factors)


@attrs.define(eq=False)
class WatchedTensor:
    """A `StoredTensor` that sums what is read of it, each row once."""

    _inner: StoredTensor
    _sums: WeightSums
    spans: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    """Rows that were summed: disjoint, in order."""
    total: int = attrs.field(default=0, init=False)

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._inner.shape

    @property
    def stored_type(self) -> str:
        return self._inner.stored_type

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    @property
    def file(self) -> str:
        return self._inner.file

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """As `StoredTensor.read`."""
        rows = self._inner.read(start, stop)
        self._add(start, rows)
        return rows

    def whole(self) -> int:
        """The sum of all rows; those that were not read yet are read."""
        count = self.shape[0] if self.shape else 1
        for first, last in list(_gaps(self.spans, 0, count)):
            self.read(*((first, last) if self.shape else ()))
        return self.total % 2**64

    def _add(self, start: int, rows: torch.Tensor) -> None:
        flat = rows.reshape(len(rows) if self.shape else 1, -1)
        for first, last in list(_gaps(self.spans, start, start + len(flat))):
            self.total += self._sums.of_rows(first, flat[first - start : last - start])
            self.spans.append((first, last))
        self.spans.sort()


def cell_sum(first: int, rows: torch.Tensor, factors: torch.Tensor) -> int:
    """The sum of the cells of `rows` ``[rows, elements]``, the first of which is row `first`."""
    if not rows.numel():
        return 0
    row_words = -(-rows.shape[1] * rows.element_size() // 4)
    whole, per_row = row_words // _WORDS, -(-row_words // _WORDS)
    sums = torch.empty((len(rows), per_row), dtype=torch.int64, device=rows.device)
    many = _AT_ONCE.get(rows.device.type, _MANY)
    step = max(many // row_words, 1)
    for start in range(0, len(rows), step):
        words, into = _words(rows[start : start + step]), sums[start : start + step]
        if whole:
            cells = words[:, : whole * _WORDS].reshape(-1, _WORDS).split(many // _WORDS)
            found = [part.long().mul_(factors).sum(1) for part in cells]
            into[:, :whole] = torch.cat(found).view(-1, whole)
        if per_row > whole:
            rest = words[:, whole * _WORDS :]
            into[:, whole] = rest.long().mul_(factors[: rest.shape[1]]).sum(1)
    places = torch.arange(first * per_row, (first + len(rows)) * per_row, device=rows.device)
    return int(_scrambled(sums.view(-1).add_(_scrambled(places))).sum())


def _words(rows: torch.Tensor) -> torch.Tensor:
    """int32 ``[rows, words]`` of the rows' bytes."""
    data = rows.contiguous().view(torch.uint8)
    rest = -data.shape[1] % 4
    if rest:
        data = torch.nn.functional.pad(data, (0, rest))
    return data.view(torch.int32)


def _scrambled(values: torch.Tensor) -> torch.Tensor:
    """A hash of int64 numbers, each 64 bits of it: the output function of SplitMix64 (G. Steele et
    al. 2014), a bijection."""
    mixed = values * _signed(_GOLDEN) + _signed(_GOLDEN)
    for shift, factor in _FACTORS:
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    return mixed ^ _shifted(mixed, 31)


def _shifted(values: torch.Tensor, shift: int) -> torch.Tensor:
    """Moved right, zeros coming in from the left."""
    return (values >> shift) & ((1 << (64 - shift)) - 1)


def _signed(number: int) -> int:
    """The int64 with these 64 bits."""
    return number - 2**64 if number >= 2**63 else number


def _gaps(spans: list[tuple[int, int]], start: int, stop: int) -> Iterator[tuple[int, int]]:
    """What of ``start:stop`` no span covers."""
    for first, last in spans:
        if first > start and start < stop:
            yield start, min(first, stop)
        start = max(start, last)
    if start < stop:
        yield start, stop
