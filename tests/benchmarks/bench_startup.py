"""How long ``pegboard --help`` and ``pegboard plugins list`` take, above bare Python, and a short
answer of ``pegboard run`` above importing torch.

Run ``python tests/benchmarks/bench_startup.py [ROUNDS] [MODEL]``, or ``make bench-startup``;
without a model there is no answer to measure. The commands are interleaved, so that a change in the
machine's load meets all of them alike. Printed are medians of wall time and of processor time, that
of all threads together; on a machine that others use, the latter says more. The goal is a median
below 0.25 s above bare Python.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple

MAIN = "import sys; from pegboard.cli import main; sys.exit(main())"
BARE = "python -c pass"
TORCH = "python -c 'import torch'"
COMMANDS = {
    BARE: ["-c", "pass"],
    "pegboard --help": ["-c", MAIN, "--help"],
    "pegboard plugins list": ["-c", MAIN, "plugins", "list"],
}
GOAL_SECONDS = 0.25
ANSWER = ("Say hello.", "--temperature", "0", "--max-tokens", "4", "--quiet")


class Spent(NamedTuple):
    """Seconds of one process."""

    wall: float
    cpu: float


def spent(words: list[str]) -> Spent:
    """Run Python with `words` to its end."""
    before, start = os.times(), time.perf_counter()
    subprocess.run([sys.executable, "-I", *words], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, os.times()
    user, system = (
        after.children_user - before.children_user,
        after.children_system - before.children_system,
    )
    return Spent(wall, user + system)


def medians(commands: Mapping[str, list[str]], rounds: int) -> dict[str, Spent]:
    """Of each command; the first round only fills the file system's cache."""
    found: dict[str, list[Spent]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, words in commands.items():
            seconds = spent(words)
            if number:
                found[name].append(seconds)
    return {
        name: Spent(*map(statistics.median, zip(*each, strict=True)))
        for name, each in found.items()
    }


def report(found: Mapping[str, Spent], base: str, goal: float | None = None) -> None:
    """One line per command: medians, and how far they are above those of `base`."""
    lowest = found[base]
    for name, median in found.items():
        line = f"{name:26} median {median.wall:.3f} s, CPU {median.cpu:.3f} s"
        if name != base:
            above = f"{median.wall - lowest.wall:.3f} s, CPU {median.cpu - lowest.cpu:.3f} s"
            line += f"; above {base} {above}" + (f" (goal {goal} s)" if goal else "")
        print(line, flush=True)


def main() -> None:
    """Measure the light commands, then an answer if there is a model."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    report(medians(COMMANDS, rounds), BARE, GOAL_SECONDS)
    if len(sys.argv) > 2:
        answer = {
            TORCH: ["-c", "import torch"],
            "pegboard run, 4 tokens": ["-c", MAIN, "run", sys.argv[2], *ANSWER],
        }
        report(medians(answer, max(rounds // 3, 1)), TORCH)


if __name__ == "__main__":
    main()
