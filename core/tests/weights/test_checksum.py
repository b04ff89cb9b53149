"""Checksums of weights: any byte counts, the way of reading does not."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs
import pytest
import torch

from pegboard.weights.checksum import WeightSums


@attrs.frozen(eq=False)
class Stored:
    """A tensor in memory, with the number of reads."""

    data: torch.Tensor
    name: str = "weight"
    stored_type: str = "F32"
    file: str = "nowhere"
    reads: list[tuple[int, int | None]] = attrs.field(factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.data.shape)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        self.reads.append((start, stop))
        return self.data.clone() if not self.shape else self.data[start:stop].clone()


def digest(data: torch.Tensor, *spans: tuple[int, int], **facts: str) -> str:
    """After reading these rows, or everything."""
    sums = WeightSums(torch.device("cpu"))
    (tensor,) = sums.watch({"weight": Stored(data, **facts)}).values()
    for start, stop in spans:
        assert torch.equal(tensor.read(start, stop), data[start:stop])
    if not spans:
        tensor.read()
    return sums.digest()


SHAPES = [((), "F32"), ((1,), "F32"), ((300,), "F16"), ((40, 7), "BF16"), ((5, 3000), "F32")]
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "Q": torch.uint8}


def make(shape: tuple[int, ...], stored_type: str) -> torch.Tensor:
    draws = torch.Generator().manual_seed(1)
    return (torch.randn(shape, generator=draws) * 100).to(DTYPES[stored_type])


@pytest.mark.parametrize(("shape", "stored_type"), [*SHAPES, ((6, 3, 1111), "Q")])
def test_every_byte_changes_the_sum(shape: tuple[int, ...], stored_type: str) -> None:
    data = make(shape, stored_type)
    before, raw = digest(data), data.reshape(-1).view(torch.uint8)
    rng = random.Random(3)
    for place in {0, len(raw) - 1, *(rng.randrange(len(raw)) for _ in range(40))}:
        bit = 1 << rng.randrange(8)
        raw[place] ^= bit
        assert digest(data) != before, f"byte {place}, bit {bit}"
        raw[place] ^= bit
    assert digest(data) == before


def negate(data: torch.Tensor) -> None:
    data[100:110] *= -1


def swap_rows(data: torch.Tensor) -> None:
    data[[3, 200]] = data[[200, 3]]


def swap_columns(data: torch.Tensor) -> None:
    data[:, [5, 6]] = data[:, [6, 5]]


def swap_blocks(data: torch.Tensor) -> None:
    data[:, :4096] = data[:, :4096].roll(2048, 1)


@pytest.mark.parametrize("change", [negate, swap_rows, swap_columns, swap_blocks])
def test_changes_that_cancel_each_other_in_plain_sums_are_seen(
    change: Callable[[torch.Tensor], None],
) -> None:
    data = torch.randn(300, 5000, generator=torch.Generator().manual_seed(2))
    before = digest(data)
    change(data)
    assert digest(data) != before


def test_the_sum_does_not_depend_on_how_the_rows_were_read() -> None:
    data = torch.randn(700, 33, generator=torch.Generator().manual_seed(4))
    whole = digest(data)
    assert digest(data, (0, 100), (100, 700)) == whole
    assert digest(data, (500, 700), (0, 300), (300, 500)) == whole
    assert digest(data, (10, 20)) == whole, "rows that nobody read count as well"
    assert digest(data, (10, 50), (40, 60), (0, 700)) == whole, "rows were counted twice"


def test_name_shape_and_type_count() -> None:
    data = torch.zeros(4, 6)
    digests = {
        digest(data),
        digest(data.view(6, 4)),
        digest(data, name="other"),
        digest(data, stored_type="I32"),
        digest(torch.zeros(4, 7)),
    }
    assert len(digests) == 5


def test_tensors_that_nothing_reads_are_not_read_for_their_sum() -> None:
    used, unused = Stored(torch.ones(3, 3)), Stored(torch.ones(3, 3), "unused")
    sums = WeightSums(torch.device("cpu"))
    watched = sums.watch({"weight": used, "unused": unused})
    watched["weight"].read()
    assert sums.digest() == digest(torch.ones(3, 3))
    assert used.reads == [(0, None)] and not unused.reads
