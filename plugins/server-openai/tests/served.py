"""A ``pegboard serve`` process for tests."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

__all__ = ["NOTHING", "Served", "serve"]


class Served:
    """The process, and what tests ask it."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, url: str, http: httpx.Client
    ) -> None:
        """`folder` is its temporary one, with its log."""
        self.process = process
        self.pid = process.pid
        self.url = url
        self.http = http
        self._folder = folder
        self._seen: dict[int, psutil.Process] = {}

    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def until(self, true: Callable[[], bool], seconds: float = 20.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, f"it did not come true\n{self.log()}"
            time.sleep(0.02)

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(httpx.TransportError):
                return self.get("/health").status_code == 200
            return False

        self.until(ready, 300)  # a busy machine is no fault
        self.children()

    def children(self) -> list[psutil.Process]:
        """All processes below this one; they are remembered."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            found += psutil.Process(self.pid).children(recursive=True)
            self._seen.update((child.pid, child) for child in found)
        return found

    def engine_pid(self) -> int:
        [engine] = self.children()
        return int(engine.pid)

    def orphans(self) -> list[int]:
        """Processes that were below this one and still run."""
        return [pid for pid, child in self._seen.items() if _runs(child)]

    def leftovers(self) -> list[Any]:
        """Processes, temporary files and shared memory that it left behind."""
        pids = {str(self.pid), *map(str, self._seen)}
        shared = [n for n in os.listdir("/dev/shm") if pids & set(re.split(r"\D+", n))]
        files = [path for path in self._folder.iterdir() if path.name != "log"]
        return [*self.orphans(), *files, *shared]

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float) -> int:
        """The exit status; negative for a signal."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        self.children()
        self.process.kill()
        self.process.wait()
        for pid in self.orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.http.close()


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


NOTHING = ("--distributed-executor-backend", "null", "--platform", "null")
"""Flags of an engine that computes nothing."""


def serve(
    model: Path, *flags: str, uds: str | None = None, engine: tuple[str, ...] = NOTHING
) -> Served:
    """Start it on a free port; its log goes to a file."""
    folder = Path(tempfile.mkdtemp(prefix="served-"))
    port = _free_port()
    words = ["serve", str(model), *engine]
    own = [] if "--port" in flags or uds else ["--port", str(port)]
    code = "import sys; from pegboard.cli import main; sys.exit(main())"
    command = [sys.executable, "-I", "-c", code, *words, *own, *flags]
    with (folder / "log").open("wb") as file:
        process = subprocess.Popen(
            command,
            stdout=file,
            stderr=file,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder)},
        )
    url = f"http://127.0.0.1:{port}"
    transport = httpx.HTTPTransport(uds=uds) if uds else None
    return Served(process, folder, url, httpx.Client(base_url=url, transport=transport, timeout=30))
