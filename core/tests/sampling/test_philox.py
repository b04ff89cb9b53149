from __future__ import annotations

import numpy as np
import pytest
import torch

from pegboard.sampling.random import device_uniforms, philox4x32, uniforms

# `kat_vectors` of the Random123 distribution, lines "philox4x32 10".
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_gives_the_published_vectors_with_integers_arrays_and_tensors(
    counter, key, expected
):
    assert philox4x32(counter, key) == expected
    wide = philox4x32(
        tuple(np.array([w], np.uint64) for w in counter),
        tuple(np.array([w], np.uint64) for w in key),
    )
    assert tuple(int(w[0]) for w in wide) == expected
    narrow = philox4x32(
        tuple(torch.tensor([w]) for w in counter), tuple(torch.tensor([w]) for w in key)
    )
    assert tuple(int(w[0]) for w in narrow) == expected


def columns(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    seeds = generator.integers(-(2**63), 2**63, rows)
    return seeds, generator.integers(0, 100, rows), generator.integers(0, 2**20, rows)


def test_a_draw_is_the_same_alone_in_a_batch_and_as_a_tensor():
    seeds, children, positions = columns(200)
    together = uniforms(seeds, children, positions)
    alone = [
        uniforms(seeds[i : i + 1], children[i : i + 1], positions[i : i + 1])[0] for i in range(200)
    ]
    tensors = device_uniforms(*map(torch.from_numpy, (seeds, children, positions)))
    assert together.tolist() == alone == tensors.tolist()


@pytest.mark.parametrize("changed", ["seed", "seed's high half", "child", "position", "stream"])
def test_every_part_of_the_key_changes_the_draw(changed):
    def draw(seed=5, child=2, position=9, stream=0):
        return uniforms(np.array([seed]), np.array([child]), np.array([position]), stream)[0]

    other = {
        "seed": draw(seed=6),
        "seed's high half": draw(seed=5 + (1 << 40)),
        "child": draw(child=3),
        "position": draw(position=10),
        "stream": draw(stream=1),
    }
    assert other[changed] != draw()


def test_draws_are_uniform_and_strictly_inside_the_unit_interval():
    count, bins = 20_000, 20
    draws = uniforms(np.full(count, 77), np.zeros(count, np.int64), np.arange(count))
    assert 0 < draws.min() <= draws.max() < 1
    observed = np.bincount((draws * bins).astype(int), minlength=bins)
    chi_square = ((observed - count / bins) ** 2 / (count / bins)).sum()
    assert chi_square < 43.8  # 99.9 % quantile at 19 degrees of freedom


def test_children_and_positions_are_not_correlated():
    count = 20_000
    zero = np.zeros(count, np.int64)
    first = uniforms(zero, zero, np.arange(count))
    sibling = uniforms(zero, zero + 1, np.arange(count))
    assert abs(np.corrcoef(first, sibling)[0, 1]) < 0.03
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 0.03
