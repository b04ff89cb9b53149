"""The GPU's table: the standard workloads on three architectures, beside stored references.

Usage: ``python tests/benchmarks/bench_gpu.py [--models …] [--workloads …] [--out FOLDER]``, or
``make bench-gpu BENCH_ARGS="…"``; ``--smoke`` runs small workloads of a tiny model on a CPU.

One engine serves all workloads of a model. A cell that fails is reported and the next one runs. A
cell that has a record of the commit in ``--out`` is not run again, so that a run that was cut off
goes on where it ended. Method and results: ``docs/performance.md``.
"""

from __future__ import annotations

import argparse
import functools
import gc
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))  # `python -I` leaves the script's folder out

from gpubench import workloads as loads  # noqa: E402
from gpubench.ceilings import Ceilings, measure_ceilings  # noqa: E402
from gpubench.models import ENGINE, MODELS, Model  # noqa: E402
from gpubench.records import (  # noqa: E402
    Book,
    Variant,
    current_commit,
    make_records,
    markdown_rows,
    row,
    text_table,
    today,
    versions,
)

if TYPE_CHECKING:
    from pegboard import LLM

SMOKE = "tiny"
STANDARD = [name for name in MODELS if name != SMOKE]
PROFILED = (1, 256)
"""Batches whose decode steps are profiled; the second is cut to ``max_num_seqs``."""


def main(words: Sequence[str] | None = None) -> int:
    """Run; the number of models or cells that failed, at most 1."""
    options = parse(words)
    book = Book(options.out, options.commit or current_commit(ROOT))
    if options.markdown:
        print(markdown_rows(book.all()))
        return 0
    if len(options.models) > 1:
        return each_alone(options.models, list(sys.argv[1:] if words is None else words))
    bench = ModelBench(options, MODELS[options.models[0]], book)
    return int(not bench.run())


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    split = lambda text: [part for part in text.split(",") if part]  # noqa: E731
    parser.add_argument("--models", type=split, default=STANDARD, help=", ".join(STANDARD))
    parser.add_argument("--workloads", type=split, help="names such as closed-1; default: all")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--quantization", default="")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--option", "-o", action="append", default=[], help="engine: name=value")
    parser.add_argument("--repeats", type=int, default=1, help="timed runs; the median counts")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "benchmarks")
    parser.add_argument("--commit", help="default: what git says")
    parser.add_argument("--again", action="store_true", help="run cells that have records, too")
    parser.add_argument("--check", action="store_true", help="compare with plain ops first")
    parser.add_argument("--plain-attention", help="attention backend of the plain engine")
    parser.add_argument("--profile", action="store_true", help="where the time of a step goes")
    parser.add_argument("--markdown", action="store_true", help="only print rows of all records")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU")
    options = parser.parse_args(words)
    if options.smoke:
        options.models, options.dtype = [SMOKE], "float32"
    known = {load.name: load for load in (loads.small() if options.smoke else loads.standard())}
    names = known if options.workloads is None else options.workloads
    for kind, given, allowed in (("model", options.models, MODELS), ("workload", names, known)):
        for name in given:
            if name not in allowed:
                parser.error(f"there is no {kind} {name!r}; there are {', '.join(allowed)}")
    options.workloads = [known[name] for name in names]
    options.option = dict(pair.partition("=")[::2] for pair in options.option)
    return options


def each_alone(models: Sequence[str], words: Sequence[str]) -> int:
    """A process for each model: a fault of the device in one leaves the others alone."""
    failed = 0
    for name in models:
        command = [sys.executable, "-I", __file__, *words, "--models", name]
        failed += subprocess.run(command, check=False).returncode != 0
    return int(failed > 0)


class ModelBench:
    """All cells of one model."""

    def __init__(self, options: argparse.Namespace, model: Model, book: Book) -> None:
        self._options = options
        self._model = model
        self._book = book
        self._variant = Variant(
            model.name, options.dtype, options.quantization, options.kv_cache_dtype
        )
        self._passed: bool | None = None
        self._ceilings: Ceilings | None = None
        self._failed: list[str] = []
        self._rows: list[tuple[str, ...]] = []

    def run(self) -> bool:
        """False if anything failed."""
        cells = [load for load in self._options.workloads if self._wanted(load)]
        if not cells and not self._options.profile:
            print(f"{self._variant.name}: nothing to run")
            return True
        self._attempt("ceilings", self._measure_ceilings)
        if self._options.check:
            self._attempt("check", self._check)
        self._attempt("engine", lambda: self._serve(cells))
        print(f"\n{text_table(self._rows)}\n", flush=True)
        if self._failed:
            print(f"{self._variant.name}: FAILED: {', '.join(self._failed)}", flush=True)
        return not self._failed

    def settings(self) -> dict[str, Any]:
        """Of the engine."""
        from pegboard.cli.options import engine_options

        own = {
            "max_model_len": self._model.max_model_len,
            "dtype": self._options.dtype,
            "kv_cache_dtype": self._options.kv_cache_dtype,
            "quantization": self._options.quantization or None,
        }
        extra = engine_options([f"{k}={v}" for k, v in self._options.option.items()], {})
        return {**ENGINE, **own, **self._model.settings, **extra}

    def _wanted(self, load: loads.Workload) -> bool:
        title = f"{self._variant.name} {load.name}"
        if load.longest > self._model.max_model_len:
            print(f"{title}: left out, needs {load.longest} tokens of context")
            return False
        again = self._options.again
        if not again and self._book.has(self._variant, load.name, checked=self._options.check):
            print(f"{title}: has a record of this commit")
            return False
        return True

    def _attempt(self, what: str, work: Callable[[], Any]) -> bool:
        """Do it; print what went wrong, and go on."""
        begin = time.perf_counter()
        try:
            work()
        except Exception:
            traceback.print_exc(file=sys.stdout)
            self._failed.append(what)
        seconds = time.perf_counter() - begin
        print(f"{self._variant.name} {what}: {seconds:.1f} s in all", flush=True)
        return what not in self._failed

    def _measure_ceilings(self) -> None:
        self._ceilings = measure_ceilings(small=self._options.smoke)
        print(f"ceilings: {self._ceilings}")

    def _check(self) -> None:
        from gpubench.check import run_check

        self._passed = False
        verdict = run_check(self._model, self.settings(), self._options.plain_attention)
        self._passed = verdict.passed
        print(f"check: {verdict}")
        if not verdict.passed:
            self._failed.append("check")

    def _serve(self, cells: Sequence[loads.Workload]) -> None:
        """One engine for all cells; a new one if a cell killed it."""
        waiting = list(cells)
        while waiting or self._options.profile:
            with self._engine() as llm:
                self._run_cells(loads.Driver(llm, seed=len(waiting)), waiting)
            gc.collect()
            if not waiting:
                return

    def _run_cells(self, driver: loads.Driver, waiting: list[loads.Workload]) -> None:
        """Take cells from `waiting` while the engine lives; last, profile it."""
        while waiting and self._alive(driver.llm):
            load = waiting.pop(0)
            self._attempt(load.name, functools.partial(self._cell, driver, load))
        if self._options.profile and not waiting and self._alive(driver.llm):
            self._attempt("profile", lambda: self._profile(driver))

    def _engine(self) -> LLM:
        """An engine that has made its first token; the time is a cell of its own."""
        import tempfile

        from pegboard import LLM

        begin = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="bench-model-") as folder:
            path = self._model.write(Path(folder) / self._model.name)
            llm = LLM(path, load_format="dummy", **self.settings())
        loads.Driver(llm, seed=-1).timed([[1]], 1)
        seconds = time.perf_counter() - begin
        facts = llm.engine.core.executor.facts()
        print(f"engine: {facts}; {llm.cache.num_blocks} blocks")
        self._keep("start", 1, [{"start": seconds}], facts=facts)
        return llm

    @staticmethod
    def _alive(llm: LLM) -> bool:
        from pegboard.errors import EngineDeadError

        try:
            llm.engine.check_alive()
        except EngineDeadError as error:
            print(f"the engine is dead: {error}")
            return False
        return True

    def _cell(self, driver: loads.Driver, load: loads.Workload) -> None:
        load.warm_up(driver)
        gc.collect()
        runs = [load.measure(driver) for _ in range(self._options.repeats)]
        self._keep(load.name, load.batch, runs)

    def _keep(
        self, workload: str, batch: int, runs: Sequence[loads.Figures], **further: Any
    ) -> None:
        """Write the records of a cell, and show them."""
        from attrs import asdict

        assert self._ceilings is not None, "ceilings are measured first"
        shared = {
            "checked": self._passed,
            "ceilings": asdict(self._ceilings),
            "settings": {k: v for k, v in self.settings().items() if v is not None},
            "date": today(),
            "commit": self._book.commit,
            "versions": versions(),
            **further,
        }
        records = make_records(self._variant, workload, batch, runs, shared)
        self._book.write(self._variant, workload, records)
        rows = [row(record) for record in records]
        self._rows += rows
        print("\n".join("  ".join(cells) for cells in rows), flush=True)

    def _profile(self, driver: loads.Driver) -> None:
        from gpubench.phases import show_phases, watch
        from gpubench.profiling import profile_decode, profile_prefill, show

        assert self._ceilings is not None, "ceilings are measured first"
        sizes = self._model.sizes()
        plain = 4 if self._options.dtype == "float32" else 2
        weight = 1 if self._options.quantization else plain
        item = (weight, 1 if "8" in self._options.kv_cache_dtype else plain)
        for batch in PROFILED:
            fitting = min(batch, driver.llm.config.max_num_seqs)
            print(show(profile_decode(driver, sizes, fitting, item), self._ceilings))
        print(show(profile_prefill(driver, sizes, item), self._ceilings))
        for load in self._options.workloads:
            if isinstance(load, loads.Mixed):
                load.warm_up(driver)
                print(show_phases(load.name, watch(driver, load.measure)[1]))


if __name__ == "__main__":
    sys.exit(main())
