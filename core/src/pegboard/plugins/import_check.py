"""Whether what plugins refer to can be imported, tried in a process of its own.

What is imported there may need a native library that is absent, hang, or end the process: the
reference at fault is told, and the others are tried all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import IO

from pegboard.api.descriptor import LazyRef
from pegboard.errors import PluginError

__all__ = ["import_faults", "serve"]

_START = (
    "import json, sys; order = json.load(sys.stdin); sys.path[:] = order['path']; "
    "from pegboard.plugins.import_check import serve; serve(order['targets'])"
)
_READY = "ready\n"
_STARTING = 60.0
"""Seconds that the interpreter gets before the first import."""


def import_faults(
    targets: Sequence[str], *, timeout: float, path: Sequence[str] | None = None
) -> dict[str, str]:
    """Import each ``"module:attribute"``; what is wrong by target, without those that are fine.

    `timeout` is in seconds and for each of them, `path` the path of imports (default
    ``sys.path``).
    """
    faults: dict[str, str] = {}
    rest = list(dict.fromkeys(targets))
    while rest:
        answers, end = _try(rest, timeout, list(sys.path if path is None else path))
        faults |= {target: fault for target, fault in zip(rest, answers, strict=False) if fault}
        if len(answers) < len(rest):
            faults[rest[len(answers)]] = end
        rest = rest[len(answers) + 1 :]
    return faults


def serve(targets: Sequence[str]) -> None:
    """In the other process: import each target and write what is wrong, a line of JSON each."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # what is imported may print
    answers.write(_READY)
    for target in targets:
        answers.flush()
        answers.write(json.dumps(_fault(target)) + "\n")
    answers.flush()
    os._exit(0)  # no waiting for threads of libraries


def _fault(target: str) -> str:
    try:
        LazyRef(target).load()
    except PluginError as error:
        return " ".join(str(error).split())
    except BaseException as error:  # also one that would end the process
        return f"cannot import {target!r}: {type(error).__name__}: {' '.join(str(error).split())}"
    return ""


def _try(targets: list[str], timeout: float, path: list[str]) -> tuple[list[str], str]:
    """Answers, in order, until one does not come; and why it did not."""
    with tempfile.TemporaryFile() as said, _start(said) as process:
        assert process.stdin is not None and process.stdout is not None, "they are pipes"
        with contextlib.suppress(OSError), process.stdin as pipe:
            pipe.write(json.dumps({"path": path, "targets": targets}).encode())
        lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        answers: list[str] = []
        late = False
        try:
            if lines.get(timeout=_STARTING) == _READY:
                while len(answers) < len(targets) and (line := lines.get(timeout=timeout)):
                    answers.append(json.loads(line))
        except Empty:
            late = True
        finally:
            process.kill()
        return answers, _end(process.wait(), timeout if late else None, said)


def _start(said: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-c", _START]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=said)


def _read(pipe: IO[bytes], lines: SimpleQueue[str]) -> None:
    with contextlib.suppress(ValueError):  # closed meanwhile
        for line in pipe:
            lines.put(line.decode("ascii"))
    lines.put("")


def _end(code: int, waited: float | None, said: IO[bytes]) -> str:
    """What became of a process that gave no answer, with its last words."""
    if waited is not None:
        return f"the import did not end within {waited:g} s"
    said.seek(0)
    words = said.read().decode("utf-8", "replace").strip().splitlines()
    last = f": {words[-1].strip()}" if words else ""
    how = f"with exit status {code}" if code >= 0 else f"by signal {-code}"
    return f"the import ended the process {how}{last}"
