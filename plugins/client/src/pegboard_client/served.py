"""``python -m pegboard_client.served WORDS``: ``pegboard serve WORDS`` until its input ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib.metadata import entry_points

__all__ = ["main"]


def main() -> int:
    """The exit code of ``pegboard serve``."""
    threading.Thread(target=_watch, args=(os.dup(0),), daemon=True).start()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # nothing else reads the pipe, nor do processes that are started from here
    os.close(null)
    sys.argv = ["pegboard", "serve", *sys.argv[1:]]
    (script,) = entry_points(group="console_scripts", name="pegboard")
    code: int = script.load()()
    return code


def _watch(pipe: int) -> None:
    """End this process in order when the writer of `pipe` is gone."""
    while os.read(pipe, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
