"""A connector of somebody else: built as a wheel outside the tree, installed, and put through the
kit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = """
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "cellar-for-pegboard"
version = "3.1"
dependencies = ["pegboard-core=={version}"]

[project.entry-points."pegboard.connectors"]
cellar = "cellar"

[tool.hatch.build.targets.wheel]
packages = ["cellar"]
"""

HOOKS = '''
"""Keeps blocks in a folder of pickled-free numpy files."""

from pegboard.api.connector import ConnectorAbilities, KVConnector
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"connector": 0}


@hookimpl
def pegboard_connectors():
    abilities = ConnectorAbilities(groups=True, kinds=(), asynchronous=True)
    return [KVConnector("cellar", "cellar.halves:Planner", "cellar.halves:Mover", abilities)]
'''

HALVES = """
import os
from pathlib import Path

import msgspec
import numpy as np

from pegboard.api.connector import (
    FailedBlock, Later, Load, Now, Pending, Piece, SchedulerHalf, StepOrder, TransferReport,
    WorkerHalf
)
from pegboard.errors import ConfigError


def folder_of(config):
    extra = config.kv_connector_extra_config
    unknown = set(extra) - {"path"}
    if unknown or "path" not in extra:
        raise ConfigError(f"cellar: keys {sorted(unknown)} are not allowed: path")
    return Path(extra["path"])


def shelf(folder, group, key):
    return folder / f"{group}-{key.hex()}.npz"


class Planner(SchedulerHalf):
    def __init__(self, ctx):
        self.folder, self.longest = folder_of(ctx.config), ctx.longest
        self.steps, self.asked = 0, {}

    def has(self, group, key):
        return shelf(self.folder, group, key).exists()

    def match(self, question):
        request = question.request
        # As if the shelf were far away: in the step that first asks, nobody knows.
        if self.asked.setdefault(request.request_id, self.steps) == self.steps:
            return Pending()
        found = self.longest(request.block_hashes, question.limit, self.has)
        more = max(found - question.computed, 0)
        late = sum(request.prompt_ids) % 2
        return Later(more) if more and late else Now(more)

    def step(self, view):
        self.steps += 1
        plain = lambda items: msgspec.to_builtins(items, builtin_types=(bytes,))
        return StepOrder({"loads": plain(view.loads), "saves": plain(view.filled)})

    def reset(self, reason):
        for file in self.folder.glob("*.npz"):
            file.unlink()


class Mover(WorkerHalf):
    def __init__(self, ctx):
        self.folder, self.slots, self.report = folder_of(ctx.config), {}, TransferReport()
        self.saves = []

    def attach(self, kv, cache, device):
        for tensors in kv:
            self.slots.setdefault(tensors.group, []).append(tensors)

    def pages(self, piece):
        return [tensors.page(piece.block) for tensors in self.slots[piece.group]]

    def start_load(self, metadata):
        self.saves = msgspec.convert(metadata["saves"], list[Piece])
        for load in msgspec.convert(metadata["loads"], list[Load]):
            for piece in load.pieces:
                try:
                    with np.load(shelf(self.folder, piece.group, piece.key)) as stored:
                        for number, page in enumerate(self.pages(piece)):
                            page.numpy()[...] = stored[str(number)]
                except OSError:
                    self.report.failed.append(FailedBlock(load.load_id, piece.group, piece.block))
            if not load.now:
                self.report.received.append(load.load_id)

    def drop(self, load_id):
        return True  # nothing is written but in `start_load`

    def wait_save(self):
        for piece in self.saves:
            file = shelf(self.folder, piece.group, piece.key)
            pages = {str(n): page.numpy() for n, page in enumerate(self.pages(piece))}
            np.savez(file.with_suffix(".part.npz"), **pages)
            os.replace(file.with_suffix(".part.npz"), file)

    def poll(self):
        report, self.report = self.report, TransferReport()
        return report
"""

TESTS = """
from pegboard_testkit.connector_kit import ConnectorKit


class TestCellar(ConnectorKit):
    connector = "cellar"
    operations = 150
    kinds = ("full", "sliding and full", "all that have hits")

    def settings(self, folder):
        return {"path": str(folder)}
"""


def run(command: list[str], cwd: Path, **environment: str) -> str:
    outcome = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.mark.accept
def test_a_wheel_from_elsewhere_passes_the_kit(
    repo_root: Path, workspace: ModuleType, tmp_path: Path
) -> None:
    project, site = tmp_path / "project", tmp_path / "site"
    files = {
        "pyproject.toml": PROJECT.format(version=workspace.read_version(repo_root)),
        "cellar/__init__.py": HOOKS,
        "cellar/halves.py": HALVES,
        "test_cellar.py": TESTS,
    }
    for name, text in files.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    pip = [sys.executable, "-m", "pip"]
    run([*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", ".", "."], project)
    wheel = next(project.glob("*.whl"))
    run(
        [*pip, "install", "-q", "--no-deps", "--no-index", "--target", str(site), wheel.name],
        project,
    )
    tests = tmp_path / "elsewhere"
    tests.mkdir()
    (tests / "test_cellar.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=120"]
    told = run([*command, "-s", "-W", "error", "test_cellar.py"], tests, PYTHONPATH=str(site))
    assert "cellar, full: 256 of 280 tokens came from outside" in told, told
    assert "26 passed" in told, told
