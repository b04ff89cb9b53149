"""Fixtures of this plugin's tests."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from pegboard.errors import CheckpointError
from pegboard_quant_gguf.source import open_checkpoint


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a test may write a file."""
    return tmp_path / "model.gguf"


@pytest.fixture
def refusal() -> Callable[[Path], str]:
    """A function that gives the message with which a file is refused, within two seconds and 16
    MiB."""

    def refuse(path: Path) -> str:
        tracemalloc.start()
        started = time.monotonic()
        with pytest.raises(CheckpointError) as caught:
            open_checkpoint(str(path))
        assert time.monotonic() - started < 2
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()
        assert str(path.parent) in str(caught.value)
        return str(caught.value)

    return refuse
