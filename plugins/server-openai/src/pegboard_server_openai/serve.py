"""``pegboard serve``."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import Iterator
from typing import Annotated, Any

import typer
import uvicorn

from pegboard.errors import ConfigError
from pegboard_server_openai.app import AppOptions, build_app
from pegboard_server_openai.gate import Gate

__all__ = ["KEY_VARIABLE", "Server", "run_server", "serve"]

KEY_VARIABLE = "PEGBOARD_API_KEY"


class Server(uvicorn.Server):
    """One whose signals are handled outside: uvicorn would raise them again at its end, before the
    engine has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves them alone."""
        yield


def serve(
    model: Annotated[str, typer.Argument(help="A GGUF file, a checkpoint directory or a hub id.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8000,
    uds: Annotated[str | None, typer.Option(help="Path of a Unix socket instead.")] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help=f"A key for clients; several may be given. Also {KEY_VARIABLE}."),
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name that clients use; several may be given.")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="Origin that browsers may call from. Default: all.")
    ] = None,
    root_path: Annotated[str, typer.Option(help="Prefix that a proxy takes away.")] = "",
    max_body_bytes: Annotated[int, typer.Option(help="Longest body.", min=1)] = 32 << 20,
    ssl_keyfile: Annotated[str | None, typer.Option(help="Key for TLS.")] = None,
    ssl_certfile: Annotated[str | None, typer.Option(help="Certificate for TLS.")] = None,
    enable_response_store: Annotated[
        bool,
        typer.Option(help="Keep what /v1/responses answers, for GET and previous_response_id."),
    ] = False,
    shutdown_grace: Annotated[
        float, typer.Option(help="Seconds that running requests get at the end.", min=0)
    ] = 10.0,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="Engine settings, name=value (JSON, else text)."),
    ] = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API."""
    keys = [*(api_key or ()), *filter(None, [os.environ.get(KEY_VARIABLE)])]
    options = AppOptions(
        names=tuple(served_model_name or [model]),
        root=model,
        api_keys=tuple(keys),
        max_body_bytes=max_body_bytes,
        allowed_origins=tuple(allowed_origin or ["*"]),
        root_path=root_path,
        response_store=enable_response_store,
    )
    gate = Gate()
    config = uvicorn.Config(
        gate,
        host=host,
        port=port,
        uds=uds,
        root_path=root_path,
        ssl_keyfile=ssl_keyfile,
        ssl_certfile=ssl_certfile,
        lifespan="on",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=max(1, round(shutdown_grace)),
    )
    settings = engine_settings(option or [])
    asyncio.run(run_server(Server(config), gate, model, settings, options))


def engine_settings(pairs: list[str]) -> dict[str, Any]:
    """Settings of `EngineConfig` from ``name=value`` words. Raises `ConfigError`."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.replace("-", "_")
        if not equals or not name or name == "model":
            raise ConfigError(f"-o {pair} is not allowed: name=value, of an engine setting")
        try:
            settings[name] = json.loads(text)
        except ValueError:
            settings[name] = text
    return settings


async def run_server(
    server: Server,
    gate: Gate,
    model: str,
    settings: dict[str, Any],
    options: AppOptions,
) -> None:
    """Listen at once, load the model beside that, serve until a signal comes, let requests end
    within the server's grace, then end the engine."""
    from pegboard import AsyncLLM

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.handle_exit, number, None)
    serving = asyncio.ensure_future(server.serve())
    engine = None
    try:
        engine = await asyncio.to_thread(AsyncLLM, model, progress=gate.progress, **settings)
        gate.app = build_app(engine, options)
        await serving
    finally:
        server.should_exit = True
        await asyncio.wait((serving,))
        if engine is not None:
            await engine.shutdown()
