"""Fixtures and rules that every test of the workspace may use."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent
MISSING_HARDWARE = "missing hardware: "
"""How a reason begins by which a test is skipped that has no mark of what it needs."""
LONG_SECONDS = 1800
"""Time limit of the long checks, where they have none of their own."""

# A shell that starts a job in the background lets it ignore interrupts, and its children too. The
# tests of interrupts need the usual handler, here and in the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="count a skipped test as failed, unless it needs hardware that is missing",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "smollm2_path" in getattr(item, "fixturenames", ()):
            item.add_marker("model")
        # A hang is found all the same; a busy machine is no reason to fail.
        if item.get_closest_marker("accept") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(LONG_SECONDS))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _has_gpu():
        pytest.skip("needs a GPU")


def _has_gpu() -> bool:
    """An NVIDIA driver is there, and nothing hides its GPUs."""
    return shutil.which("nvidia-smi") is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != ""


@pytest.fixture(autouse=True)
def log_restored() -> Iterator[None]:
    """A command sets up the log; the next test finds it as it was before the first."""
    yield
    root = logging.getLogger("pegboard")
    root.handlers.clear()
    root.setLevel(logging.NOTSET)
    root.propagate = True


def pytest_unconfigure(config: pytest.Config) -> None:
    """A process of several has five seconds to end after its last report, then it is interrupted.

    On a busy machine pytest's last collection, over all that the tests imported, can take longer,
    and the interrupt would be shown as an exception that a callback of the collector ignored.
    """
    if hasattr(config, "workerinput"):
        gc.freeze()


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skipped report into a failed one that keeps the reason."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: {reason} (--no-skips)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("gpu")
    expected = expected or (report.skipped and MISSING_HARDWARE in str(report.longrepr))
    if report.skipped and not expected and item.config.getoption("--no-skips"):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    report = yield
    if report.skipped and collector.config.getoption("--no-skips"):
        _refuse(report)
    return report


def _load_script(name: str) -> ModuleType:
    """Import a file of `scripts/`, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The root of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The demo model's GGUF file, downloaded if the cache lacks it; skipped where that fails."""
    script = _load_script("fetch_model")
    try:
        return Path(script.fetch())
    except script.FetchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def gemma_path() -> Path:
    """The real Gemma 3 model's GGUF file, downloaded if the cache lacks it; skipped where that
    fails."""
    command = [sys.executable, str(ROOT / "scripts" / "fetch_gemma.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(done.stderr.strip())
    return Path(done.stdout.strip())
