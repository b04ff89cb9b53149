"""The engine's process, as the process that started it sees it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

__all__ = ["Child"]

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pegboard.engine.process import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])"
)
_SWEEP = 2.0
"""Seconds that processes of the engine's own get to notice its end."""


class Child:
    """A fresh interpreter, in a session of its own, so that no signal of a terminal reaches it.

    It lives as long as the pipe to it is open, which no other process holds. What it started itself
    (the processes of ranks) is ended after it.
    """

    def __init__(self, folder: str) -> None:
        """`folder` holds the sockets; the process removes it when its parent is gone."""
        reading, self._lifeline = os.pipe()
        self.ended, self._tell_end = os.pipe()
        """A descriptor that can be read from when the process is gone."""
        words = [json.dumps(sys.path), str(reading), str(os.getpid()), folder]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, *words],
                stdin=subprocess.DEVNULL,
                pass_fds=(reading,),
                start_new_session=True,
            )
        except BaseException:
            for descriptor in (self._lifeline, self.ended, self._tell_end):
                os.close(descriptor)
            raise
        finally:
            os.close(reading)
        self.pid = self._process.pid
        self._watcher = threading.Thread(target=self._watch, name="pegboard-child", daemon=True)
        self._watcher.start()

    def tell(self, message: bytes) -> None:
        """The first and only message, before all others; nobody hears it if the process is gone."""
        data = memoryview(len(message).to_bytes(8, "little") + message)
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(self._lifeline, data) :]

    def describe(self) -> str:
        """How the process ended, for people."""
        code = self._process.returncode
        name = f"the engine's process {self.pid}"
        if code is None:
            return f"{name} runs"
        if code >= 0:
            return f"{name} ended with exit status {code}"
        return f"{name} was ended by signal {signal.Signals(-code).name}"

    @property
    def exit_code(self) -> int | None:
        """As `subprocess.Popen.returncode`; None while it runs."""
        return self._process.returncode

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def wait(self, seconds: float | None = None) -> bool:
        """Until it and all that it started is gone; False if that takes longer."""
        self._watcher.join(seconds)
        return not self._watcher.is_alive()

    def release(self) -> None:
        """Close the descriptors; a process that still runs ends."""
        for descriptor in (self._lifeline, self.ended, self._tell_end):
            os.close(descriptor)

    def _watch(self) -> None:
        self._process.wait()
        os.write(self._tell_end, b"!")
        self._sweep()

    def _sweep(self) -> None:
        """End what is left of the session; what notices by itself has time to tidy up."""
        deadline = time.monotonic() + _SWEEP
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self.pid, 0)
                time.sleep(0.02)
            os.killpg(self.pid, signal.SIGKILL)
