"""How long ``pegboard --help`` and ``pegboard plugins list`` take, above bare Python.

Run ``python tests/benchmarks/bench_startup.py [ROUNDS]``. The three commands are interleaved, so
that a change in the machine's load meets all of them alike. The goal is a median below 0.25 s above
bare Python.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

MAIN = "import sys; from pegboard.cli import main; sys.exit(main())"
BARE = "python -c pass"
COMMANDS = {
    BARE: ["-c", "pass"],
    "pegboard --help": ["-c", MAIN, "--help"],
    "pegboard plugins list": ["-c", MAIN, "plugins", "list"],
}
GOAL_SECONDS = 0.25


def measure(rounds: int) -> dict[str, list[float]]:
    """Wall seconds of each command, in each round."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds):
        for name, words in COMMANDS.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
            seconds[name].append(time.perf_counter() - start)
    return seconds


def main() -> None:
    """Print one line per command: median, and median above bare Python."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    medians = {name: statistics.median(times) for name, times in measure(rounds).items()}
    for name, median in medians.items():
        above = median - medians[BARE]
        verdict = "" if name == BARE else f"  above bare {above:.3f} s (goal {GOAL_SECONDS} s)"
        print(f"{name:24} median {median:.3f} s{verdict}")


if __name__ == "__main__":
    main()
