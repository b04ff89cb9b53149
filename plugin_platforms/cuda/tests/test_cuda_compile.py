"""Every kernel compiles for a GPU of capability 9.0, which the interpreter does not show."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("compile_kernels.py")
FEW = 64
"""Bytes of stack per thread: what a version of Triton may put there without spilling in a loop."""


@pytest.mark.accept
def test_kernels_compile_and_keep_their_values_in_registers() -> None:
    compiling = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=compiling)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) > 50
    spilled = [" ".join(line) for line in lines if int(line[-2]) > FEW]
    assert not spilled, "\n".join(spilled)
