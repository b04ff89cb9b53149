"""A server's life: listen at once, load beside that, serve, and end in order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn

from pegboard.errors import ConfigError, EngineDeadError
from pegboard_server_openai.app import build_app
from pegboard_server_openai.command_line import Settings
from pegboard_server_openai.gate import Gate
from pegboard_server_openai.options import ServerOptions

__all__ = ["listen", "serve_forever"]

_LOG = logging.getLogger("pegboard.plugin.server-openai")
_LOOK = 0.1
"""Seconds between two looks at the engine."""
_LAST_WORDS = 2.0
"""Seconds that answers get to leave after the engine's end."""


class _Uvicorn(uvicorn.Server):
    """One whose signals are handled outside: uvicorn would raise them again at its end, before the
    engine has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them alone."""
        yield


def listen(options: ServerOptions) -> socket.socket:
    """The socket, bound. Raises `ConfigError` for an address that cannot be had."""
    if options.uds is not None:
        return _listen_unix(options.uds)
    where = f"--host {options.host} --port {options.port}"
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # Only of sockets that name their protocol asyncio's own loop has pieces sent at once.
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{where} is not allowed: {error.strerror or error}") from None
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(address)
    except OSError as error:
        found.close()
        raise ConfigError(f"{where} is not allowed: {error.strerror or error}") from None
    return found


def _listen_unix(path: str) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if _is_abandoned(path):
            os.unlink(path)
        found.bind(path)
    except OSError as error:
        found.close()
        raise ConfigError(f"--uds {path} is not allowed: {error.strerror or error}") from None
    return found


def _is_abandoned(path: str) -> bool:
    """A socket that nobody listens at."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def serve_forever(settings: Settings) -> int:
    """Serve until a signal comes or the engine dies; the exit status: 0 after a signal, 1 after
    the engine's death.

    The first signal ends the server in order: new requests are answered 503, running ones may
    finish within the grace. A second one ends the process at once; the engine's process notices.
    Raises `ConfigError` for settings that cannot be had, and what building the engine raises.
    """
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(listen(settings.server))
        if settings.server.uds is not None:
            undo.callback(_unlink, settings.server.uds)
        gate = Gate()
        server = _Uvicorn(_configured(settings, gate))
        life = _Life(settings, gate, server, sock)
        try:
            import uvloop
        except ImportError:
            return asyncio.run(life.run())
        return int(uvloop.run(life.run()))


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _configured(settings: Settings, gate: Gate) -> uvicorn.Config:
    options = settings.server
    config = uvicorn.Config(
        gate,
        host=options.host,
        port=options.port,
        uds=options.uds,
        root_path=settings.app.root_path,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=options.ssl_cert_reqs,
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(_LAST_WORDS)),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ssl-certfile, --ssl-keyfile or --ssl-ca-certs: {error}") from None
    return config


class _Life:
    """From the first listening to the last answer."""

    def __init__(
        self, settings: Settings, gate: Gate, server: uvicorn.Server, sock: socket.socket
    ) -> None:
        self._settings = settings
        self._gate = gate
        self._server = server
        self._sock = sock
        self._asked = asyncio.Event()
        """A signal came."""

    async def run(self) -> int:
        """All of it; the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._ask)
        serving = asyncio.ensure_future(self._server.serve(sockets=[self._sock]))
        try:
            engine = await self._load()
            try:
                code = await self._serve(engine)
            finally:
                await engine.shutdown()
        finally:
            self._server.should_exit = True
            await asyncio.wait((serving,))
        serving.result()
        return code

    def _ask(self) -> None:
        self._asked.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # the next one ends the process

    async def _load(self) -> Any:
        """The engine. A signal meanwhile ends the process: loading cannot be called off."""
        from pegboard import AsyncLLM

        config, told = self._settings.engine, self._gate.progress
        loading = asyncio.ensure_future(
            asyncio.to_thread(AsyncLLM.from_config, config, progress=told)
        )
        asked = asyncio.ensure_future(self._asked.wait())
        await asyncio.wait((loading, asked), return_when=asyncio.FIRST_COMPLETED)
        asked.cancel()
        if not loading.done():
            logging.shutdown()
            if self._settings.server.uds is not None:
                _unlink(self._settings.server.uds)
            os._exit(0)  # the engine's process ends with its parent
        return loading.result()

    async def _serve(self, engine: Any) -> int:
        self._gate.app = build_app(engine, self._settings.app)
        gc.collect()
        gc.freeze()  # what is there stays; looking through it again and again takes long
        # A step of many streams makes thousands of objects. What a connection leaves behind are
        # 8 KiB in cycles: after some thousands of them they go.
        gc.set_threshold(20_000, 2, 10)
        _LOG.info("serving %s at %s", self._settings.app.root, self._address())
        watch = asyncio.ensure_future(self._watch(engine))
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait((watch, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            asked.cancel()
        if watch.done() and not self._asked.is_set():
            watch.result()
            await self._idle(_LAST_WORDS)
            return 1
        self._gate.closing = True
        _LOG.info("no new requests are taken; %d are running", self._gate.running)
        await self._idle(self._settings.server.shutdown_grace)
        return 0

    def _address(self) -> str:
        if self._settings.server.uds is not None:
            return f"unix:{self._settings.server.uds}"
        host, port = self._sock.getsockname()[:2]
        scheme = "https" if self._settings.server.ssl_certfile else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    async def _watch(self, engine: Any) -> None:
        """Report a silent engine; returns when it is dead and that is to end the server."""
        limit, hung, dead = self._settings.app.step_timeout, False, False
        while not dead or not self._settings.server.exit_on_engine_death:
            await asyncio.sleep(_LOOK)
            silent = engine.silent_for
            if (limit and silent > limit) != hung:
                hung = not hung
                if hung:
                    _LOG.error("the engine is silent for %.0f s and counts as hung", silent)
                else:
                    _LOG.warning("the engine tells something again")
            if not dead:
                try:
                    await engine.check_health()
                except EngineDeadError as error:
                    dead = True
                    _LOG.error("the engine has stopped: %s", error)

    async def _idle(self, seconds: float) -> None:
        """Until no request is being answered, or so long."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self._gate.running and loop.time() < end:
            await asyncio.sleep(0.02)
