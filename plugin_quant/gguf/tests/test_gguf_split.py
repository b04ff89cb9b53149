"""Split files: all parts are read, and a part that is missing or wrong is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pegboard_quant_gguf.source import open_checkpoint
from pegboard_quant_gguf.testing import tensor_data, write_gguf

Refusal = Callable[[Path], str]
MODEL = {"general.architecture": "llama"}


def parts(folder: Path, count: int = 3, **total: int) -> list[Path]:
    """A model of one tensor per part."""
    paths = []
    for number in range(count):
        pairs: dict[str, Any] = {} if number else dict(MODEL)
        pairs |= {
            "split.no": number,
            "split.count": count,
            "split.tensors.count": total.get("total", count),
        }
        path = folder / f"m-{number + 1:05d}-of-{count:05d}.gguf"
        paths.append(
            write_gguf(path, pairs, [tensor_data(f"w{number}", torch.full((2, 32), float(number)))])
        )
    return paths


def test_all_parts_of_a_split_file_are_read(tmp_path: Path) -> None:
    paths = parts(tmp_path)
    tensors = open_checkpoint(str(paths[0])).tensors
    assert [tensors[f"w{n}"].read()[0, 0].item() for n in range(3)] == [0.0, 1.0, 2.0]
    assert tensors["w2"].file == str(paths[2])


def test_o35d_a_missing_part_is_named(tmp_path: Path, refusal: Refusal) -> None:
    paths = parts(tmp_path)
    paths[1].unlink()
    assert "m-00002-of-00003.gguf is missing" in refusal(paths[0])


def test_o35d_opening_a_later_part_names_the_first(tmp_path: Path, refusal: Refusal) -> None:
    message = refusal(parts(tmp_path)[1])
    assert "part 2 of 3" in message
    assert "m-00001-of-00003.gguf" in message


def test_parts_that_disagree_are_refused(tmp_path: Path, refusal: Refusal) -> None:
    paths = parts(tmp_path)
    paths[1].write_bytes(paths[2].read_bytes())
    assert "says it is part 3 of 3" in refusal(paths[0])
    assert "'split.tensors.count' is 7, but the 3 parts hold 3" in refusal(
        parts(tmp_path, total=7)[0]
    )
    pairs = {"split.no": 1, "split.count": 3}
    write_gguf(parts(tmp_path)[1], pairs, [tensor_data("w0", torch.ones(1, 32))])
    assert "tensor 'w0' is also in" in refusal(paths[0])


def test_a_split_file_must_keep_its_name(tmp_path: Path, refusal: Refusal) -> None:
    renamed = parts(tmp_path)[0].rename(tmp_path / "model.gguf")
    assert "must be called NAME-00001-of-00003.gguf" in refusal(renamed)


def test_senseless_split_numbers_are_refused(file: Path, refusal: Refusal) -> None:
    assert "make no sense" in refusal(write_gguf(file, {**MODEL, "split.no": 5, "split.count": 3}))
    assert "make no sense" in refusal(
        write_gguf(file, {**MODEL, "split.no": 0, "split.count": 1 << 31})
    )
