"""A server of one's own: ``pegboard serve`` on a Unix socket, in a process that ends with this one.

The child reads a pipe that only its parent holds open; when the parent is gone, however it ended,
the pipe ends too and the child stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from pegboard_client.server import KEY_VARIABLES, Server, ServerError, told

__all__ = ["own_server"]

STOP_SECONDS = 30.0
"""How long a child may take to end before it is killed."""
ASK_SECONDS = 0.05


@asynccontextmanager
async def own_server(words: Sequence[str]) -> AsyncIterator[Server]:
    """The server of ``pegboard serve <words>``, when it is ready.

    Raises `ServerError` if the process ends instead; what it had to say stands on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="pegboard-") as folder:
        socket = str(Path(folder, "server"))
        command = [sys.executable, "-m", "pegboard_client.served", *words, "--uds", socket]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, env=_environment()
        )
        try:
            server = Server("http://pegboard", socket=socket)
            await _ready(server, child)
            yield server
        finally:
            await _stop(child)


def _environment() -> dict[str, str]:
    """Without a key: only this user reaches the socket. Its log is of warnings, unless asked for
    more."""
    own = {name: value for name, value in os.environ.items() if name != KEY_VARIABLES[0]}
    return {"PEGBOARD_LOG_LEVEL": "WARNING", **own}


async def _ready(server: Server, child: subprocess.Popen[bytes]) -> None:
    async with server.client(seconds=10) as client:
        while True:
            if child.poll() is not None:
                raise ServerError(
                    f"the server of the model ended with exit code {child.returncode} before it "
                    "was ready; its message stands above"
                )
            try:
                reply = await client.get("/health")
            except httpx.HTTPError:
                reply = None
            if reply is not None and reply.status_code == 200:
                return
            if reply is not None and reply.status_code != 503:
                raise ServerError(told(reply.status_code, reply.content))
            await asyncio.sleep(ASK_SECONDS)


async def _stop(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        os.kill(child.pid, signal.SIGTERM)
    try:
        await asyncio.to_thread(child.wait, STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdin is not None:
        child.stdin.close()
