"""How long ``pegboard --help`` and ``pegboard plugins list`` take, above bare Python, with what is
installed and with 40 more plugins; what loading all of them adds to ``pegboard run``; and a short
answer of it above importing torch.

Run ``python tests/benchmarks/bench_startup.py [ROUNDS] [MODEL]``, or ``make bench-startup``;
without a model there is no answer to measure. The commands are interleaved, so that a change in the
machine's load meets all of them alike. Printed are medians of wall time and of processor time, that
of all threads together; on a machine that others use, the latter says more. The goals are medians
above bare Python.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pegboard import __version__

BARE = "python -c pass"
TORCH = "python -c 'import torch'"
PLUGINS = 40
GOAL_SECONDS = 0.25
GOAL_SECONDS_OF_MANY = 0.4
GOAL_MILLISECONDS_OF_LOADING = 50
ANSWER = ("Say hello.", "--temperature", "0", "--max-tokens", "4", "--quiet")
LOAD = """
import sys, time
sys.path.insert(0, sys.argv[1])
import pegboard.engine.llm  # as the command has, when it loads them
import pegboard.api.attention, pegboard.api.model, pegboard.api.ops  # which any engine needs
import pegboard.api.platform, pegboard.api.quant
from pegboard.plugins import load_plugins
begin, cpu = time.perf_counter(), time.process_time()
board = load_plugins()
wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
print(wall, cpu, sum(p.state == "ready" for p in board.plugins))
"""

KINDS = {
    "attention": (
        "from pegboard.api.attention import AttentionBackend",
        "pegboard_attention_backends",
        'AttentionBackend("{name}", kernel="{module}.parts:Kernel")',
    ),
    "command": (
        "from pegboard.api.command import Command",
        "pegboard_commands",
        'Command("{name}", "Print nothing", app="{module}.parts:main")',
    ),
    "connector": (
        "from pegboard.api.connector import KVConnector",
        "pegboard_connectors",
        'KVConnector("{name}", "{module}.parts:Scheduler", "{module}.parts:Worker")',
    ),
    "logits": (
        "from pegboard.api.logits import LogitsProcessor",
        "pegboard_logits_processors",
        'LogitsProcessor(name="{name}", build="{module}.parts:Rows", arguments=("{module}",))',
    ),
    "model": (
        "from pegboard.api.model import ModelFamily",
        "pegboard_model_families",
        'ModelFamily("{name}", {{"hf": ("{module}ForCausalLM",)}}, "{module}.parts:config", '
        '"{module}.parts:weights", "{module}.parts:Model")',
    ),
    "platform": (
        "from pegboard.api.platform import Platform",
        "pegboard_platforms",
        'Platform("{name}", probe="{module}.parts:probe", runtime="{module}.parts:Runtime")',
    ),
    "quant": (
        "from pegboard.api.quant import QuantFormat",
        "pegboard_quant_formats",
        'QuantFormat("{name}", quantizer="{module}.parts:Quantizer", methods=("{name}",))',
    ),
    "scheduler": (
        "from pegboard.api.scheduler_class import SchedulerClass",
        "pegboard_schedulers",
        'SchedulerClass("{name}", "{module}.parts:Scheduler")',
    ),
}
"""Surface -> import, hook and descriptor of a plugin for it."""


def start(site: str = "") -> str:
    """Code that is `pegboard` on the command line, with the plugins in the folder `site` too."""
    more = f"sys.path.insert(0, {site!r}); " if site else ""
    return f"import sys; {more}from pegboard.cli import main; sys.exit(main())"


def install_many(site: Path, count: int = PLUGINS) -> None:
    """Write `count` plugins into `site`, as pip leaves them: metadata and a package of hooks."""
    for number in range(count):
        surface = sorted(KINDS)[number % len(KINDS)]
        install_one(site, surface, f"many-{number}")


def install_one(site: Path, surface: str, name: str) -> None:
    """A plugin whose parts do not exist: nothing that only looks at plugins may import them."""
    module = name.replace("-", "_")
    imported, hook, descriptor = KINDS[surface]
    info = site / f"{module}-1.0.dist-info"
    info.mkdir(parents=True)
    needs = f"Requires-Dist: pegboard-core=={__version__}"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\n")
    (info / "entry_points.txt").write_text(f"[pegboard.plugins]\n{name} = {module}\n")
    (site / module).mkdir()
    made = descriptor.format(name=name, module=module)
    lines = (
        f"from pegboard.api.hooks import hookimpl\n{imported}\n",
        f'PEGBOARD_API = {{"{surface}": 0}}\n',
        f"@hookimpl\ndef {hook}():\n    return [{made}]\n",
    )
    (site / module / "__init__.py").write_text("\n".join(lines))


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


def light(site: str = "") -> dict[str, list[str]]:
    """The commands that start quickly, and bare Python."""
    return {
        BARE: ["-c", "pass"],
        "pegboard --help": ["-c", start(site), "--help"],
        "pegboard plugins list": ["-c", start(site), "plugins", "list"],
    }


def loading(site: Path, rounds: int, least: int) -> Spent:
    """Medians of what `load_plugins` takes in a process that did not load them yet."""
    found = []
    for _ in range(rounds + 1):
        command = [sys.executable, "-I", "-c", LOAD, str(site)]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert int(shown[2]) >= least, f"{shown[2]} plugins are ready"
        found.append((float(shown[0]), float(shown[1])))
    return Spent(*map(statistics.median, zip(*found[1:], strict=True)))


def report_loading(site: Path, rounds: int, least: int = 1) -> None:
    """One line on what finding and loading the plugins takes."""
    took = loading(site, rounds, least)
    name, goal = "finding and loading them", GOAL_MILLISECONDS_OF_LOADING
    wall, cpu = 1000 * took.wall, 1000 * took.cpu
    print(f"{name:26} median {wall:.1f} ms, CPU {cpu:.1f} ms in pegboard run (goal {goal} ms)")


def main() -> None:
    """Measure the light commands, then an answer if there is a model."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    report(medians(light(), rounds), BARE, GOAL_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        report_loading(Path(folder), rounds)
        install_many(Path(folder))
        print(f"with {PLUGINS} more plugins:")
        report(medians(light(folder), rounds), BARE, GOAL_SECONDS_OF_MANY)
        report_loading(Path(folder), rounds, PLUGINS + 1)
    if len(sys.argv) > 2:
        answer = {
            TORCH: ["-c", "import torch"],
            "pegboard run, 4 tokens": ["-c", start(), "run", sys.argv[2], *ANSWER],
        }
        report(medians(answer, max(rounds // 3, 1)), TORCH)


if __name__ == "__main__":
    main()
