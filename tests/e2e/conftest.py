"""What the end-to-end tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny products gain nothing from a second thread, and lose much on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def eight_prompts() -> tuple[str, ...]:
    """Beginnings in several languages, for greedy decoding beside a reference."""
    return (
        "The history of the printing press begins",
        "Die Hauptstadt von Österreich ist",
        "Il était une fois, dans une forêt lointaine,",
        "def fibonacci(n):\n    ",
        "La capital de España es Madrid y",
        "水は摂氏百度で",
        "Быстрая лиса прыгает через",
        "1, 1, 2, 3, 5, 8, 13,",
    )


class CommandLine:
    """The ``pegboard`` command of this environment, in a process of its own."""

    def __init__(self) -> None:
        self.start = [
            sys.executable,
            "-Ic",
            "from pegboard.cli import main; raise SystemExit(main())",
        ]

    def __call__(
        self, *words: str, timeout: float = 120, env: dict[str, str] | None = None, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end, with a short output captured as text."""
        return subprocess.run(
            [*self.start, *words],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self.environment(env or {}),
            **more,
        )

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[bytes]:
        """Start a command line; its output comes through pipes."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([*self.start, *words], env=self.environment({}), **pipes)

    @staticmethod
    def environment(changes: dict[str, str]) -> dict[str, str]:
        """This process's, without what would steer Pegboard, with `changes`."""
        steering = ("PEGBOARD_", "VLLM_")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(steering)}
        return kept | {"OMP_NUM_THREADS": "1"} | changes


@pytest.fixture(scope="session")
def pegboard() -> CommandLine:
    return CommandLine()


def spoken(error: str) -> str:
    """Standard error without log records: what a person is told."""
    return "\n".join(line for line in error.splitlines() if not line.startswith("{"))


@pytest.fixture(scope="session")
def one_clear_line() -> Any:
    """A check: the command failed with bad input, said so in one line, and that line names all of
    `words`."""

    def check(outcome: subprocess.CompletedProcess[str], *words: str, code: int = 2) -> None:
        assert outcome.returncode == code, outcome.stdout + outcome.stderr
        assert "Traceback" not in outcome.stderr
        lines = spoken(outcome.stderr).strip().splitlines()
        assert lines and lines[-1].startswith("pegboard: error: "), outcome.stderr
        assert len(lines) == 1, lines
        for word in words:
            assert word in lines[0]

    return check


@pytest.fixture(scope="session")
def scripted_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes folders for scripted models."""

    def make(script: Sequence[int], prompt_tokens: int, **settings: Any) -> Path:
        from pegboard.testing.checkpoints import write_scripted_model

        folder = tmp_path_factory.mktemp("scripted")
        return write_scripted_model(folder, script, prompt_tokens=prompt_tokens, **settings)

    return make
