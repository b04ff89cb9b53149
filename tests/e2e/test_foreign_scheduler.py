"""A scheduler written from nothing, built as a wheel outside this tree, serves a model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pegboard import LLM, SamplingParams
from pegboard.__about__ import __version__
from pegboard.testing.checkpoints import write_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

FILES = {
    "pyproject.toml": f"""
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "solo-scheduler"
version = "1.0"
dependencies = ["pegboard-core=={__version__}"]

[project.entry-points."pegboard.plugins"]
solo = "solo_scheduler"
""",
    "src/solo_scheduler/__init__.py": """
from pegboard.api.hooks import hookimpl
from pegboard.api.scheduler import SchedulerClass

PEGBOARD_API = {"scheduler": 0}


@hookimpl
def pegboard_schedulers():
    return [SchedulerClass("solo", "solo_scheduler.solo:Solo")]
""",
    "src/solo_scheduler/solo.py": '''
"""One request at a time, in blocks from 1 on, without cache, chunks or preemption."""

from collections import deque

from pegboard.api.scheduler import SchedulerStats
from pegboard.api.step import NewRow, StepPlan
from pegboard.api.views import EngineOutput
from pegboard.errors import ResourceError


class Solo:
    def __init__(self, ctx):
        self.groups = ctx.cache.groups
        self.blocks = ctx.cache.num_blocks - 1
        self.budget = ctx.config.max_num_batched_tokens
        self.queue = deque()
        self.live = self.freed = None
        self.output, self.computed, self.steps = [], 0, 0

    def _tables(self, request):
        tokens, first, tables = len(request.prompt_ids) + request.max_tokens, 1, []
        for group in self.groups:
            count = -(-tokens // group.block_size)
            tables.append(list(range(first, first + count)))
            first += count
        return tables, first - 1

    def add(self, request):
        if self._tables(request)[1] > self.blocks or len(request.prompt_ids) > self.budget:
            raise ResourceError(f"request {request.request_id!r} is too long")
        self.queue.append(request)

    def plan(self):
        plan = StepPlan(self.steps, [], [], [], [], [])
        if self.live is None and not self.queue:
            return plan
        self.steps += 1
        blocks = [[] for _ in self.groups]
        if self.live is None:
            self.live, self.output, self.computed = self.queue.popleft(), [], 0
            live, held = self.live, [[] for _ in self.groups]
            blocks = self._tables(live)[0]
            row = NewRow(
                0, live.prompt_ids, [], live.params, live.seed, live.child, live.end_ids, held
            )
            plan.new_rows.append(row)
            plan.freed_slots = [0] if self.freed else []
            self.freed = False
        count = len(self.live.prompt_ids) + len(self.output) - self.computed
        plan.slots, plan.starts, plan.counts = [0], [self.computed], [count]
        plan.samples, plan.new_blocks = [True], [blocks]
        return plan

    def update(self, plan, result):
        if not plan.slots:
            return []
        live, (token,) = self.live, result.token_ids[0]
        self.computed += plan.counts[0]
        self.output.append(token)
        reason = "length" if len(self.output) == live.max_tokens else None
        if token in live.end_ids:
            reason = "stop"
        if reason:
            self._drop()
        return [EngineOutput(live.request_id, [token], reason)]

    def _drop(self):
        self.live, self.freed = None, True

    def abort(self, ids):
        gone = [r for r in [self.live, *self.queue] if r is not None and r.request_id in set(ids)]
        for request in gone:
            if request is self.live:
                self._drop()
            else:
                self.queue.remove(request)
        return [EngineOutput(request.request_id, [], "abort") for request in gone]

    def finish(self, ids, reason):
        self.abort(ids)

    def resync(self):
        pass

    def has_work(self):
        return self.live is not None or bool(self.queue)

    def stats(self):
        return SchedulerStats(int(self.live is not None), len(self.queue), 0, self.blocks)

    def reset_prefix_cache(self):
        return True

    def take_events(self):
        return []

    def check(self):
        assert self.live is not None or not self.has_work() or self.queue
''',
    "run.py": """
import sys

from pegboard import LLM, SamplingParams

model, named = sys.argv[1:]
options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16}
with LLM(model, scheduler_cls=named, **options) as llm:
    params = SamplingParams(max_tokens=9, temperature=1.0, seed=4)
    outputs = llm.generate(["one", "and two", "three"], params, use_tqdm=False)
    print(type(llm.engine.core.scheduler).__module__)
    print([output.outputs[0].token_ids for output in outputs])
""",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation folder with the wheel."""
    folder = tmp_path_factory.mktemp("solo")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    wheel = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", "wheels", "."]
    install = [*pip, "install", "--no-deps", "--no-index", "--target", "site"]
    subprocess.run(wheel, cwd=folder, check=True)
    wheels = list((folder / "wheels").glob("*.whl"))
    subprocess.run([*install, *map(str, wheels)], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=5)


def usual_answer(model: Path) -> list[list[int]]:
    options = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16}
    with LLM(str(model), **options) as llm:
        params = SamplingParams(max_tokens=9, temperature=1.0, seed=4)
        outputs = llm.generate(["one", "and two", "three"], params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize(
    "named", ["solo", pytest.param("solo_scheduler.solo:Solo", marks=pytest.mark.accept)]
)
def test_an_installed_scheduler_gives_the_tokens_of_the_cores(
    site: Path, model: Path, named: str
) -> None:
    outcome = subprocess.run(
        [sys.executable, "run.py", str(model), named],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site / "site"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    scheduler, tokens = outcome.stdout.splitlines()
    assert scheduler == "solo_scheduler.solo"
    assert tokens == str(usual_answer(model))
