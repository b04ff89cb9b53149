"""A server of OpenAI's API: where it is, what it serves, and what its failures are called."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import attrs
import httpx
import msgspec

from pegboard.errors import ConfigError, PegboardError

__all__ = [
    "KEY_VARIABLES",
    "Server",
    "ServerError",
    "checked",
    "choose_model",
    "network_faults",
    "told",
]

KEY_VARIABLES = ("PEGBOARD_API_KEY", "OPENAI_API_KEY")
"""Where a key is looked for, in this order, that no flag gives."""

CONNECT_SECONDS = 10.0


class ServerError(PegboardError):
    """A server that is not there, breaks off or answers with an error; `status` is 0 without an
    answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@attrs.frozen
class Server:
    """Where requests go. Make it with `Server.at`."""

    base: str
    """Scheme, host and prefix, without ``/v1`` and without a slash at the end."""
    key: str | None = attrs.field(default=None, repr=False)
    socket: str | None = None
    """Path of a Unix socket to connect to instead of the host."""

    @classmethod
    def at(cls, url: str, key: str | None = None) -> Server:
        """From what a user typed. Raises `ConfigError` for what is no HTTP address."""
        base = url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
        parts = urlsplit(base)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise ConfigError(
                f"--url {url!r} is not allowed: an address such as http://127.0.0.1:8000"
            )
        try:
            parts.port  # noqa: B018  # reading it checks it
        except ValueError as error:
            raise ConfigError(f"--url {url!r} is not allowed: {error}") from None
        return cls(base, key or _key_of(os.environ))

    @property
    def headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    @asynccontextmanager
    async def client(
        self, *, connections: int = 8, seconds: float | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client; `seconds` is the longest silence of an answer, None for any."""
        limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
        secure = self.base.startswith("https:")  # reading certificates takes a while
        transport = httpx.AsyncHTTPTransport(verify=secure, limits=limits, uds=self.socket)
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None)
        async with httpx.AsyncClient(
            base_url=self.base, headers=self.headers, timeout=timeout, transport=transport
        ) as client:
            yield client


def _key_of(environ: Mapping[str, str]) -> str | None:
    return next((environ[name] for name in KEY_VARIABLES if environ.get(name)), None)


@contextmanager
def network_faults(server: Server) -> Iterator[None]:
    """Turn what the network does into `ServerError`."""
    try:
        yield
    except httpx.ConnectError as error:
        why = str(error) or type(error).__name__
        raise ServerError(
            f"cannot reach {server.base}: {why}; is the server running? "
            "'pegboard serve MODEL' starts one"
        ) from error
    except httpx.TimeoutException as error:
        raise ServerError(f"{server.base} does not answer in time") from error
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
        raise ServerError(f"the connection to {server.base} broke: {why}") from error


def told(status: int, body: bytes) -> str:
    """The message of an answer that is an error, in OpenAI's form or another."""
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = None
    found: Any = content
    for key in ("error", "message"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    if isinstance(found, dict) and "detail" in found:
        found = found["detail"]
    if isinstance(found, str) and found:
        return found
    text = body.decode("utf-8", "replace").strip().replace("\n", " ")
    return text[:200] or f"status {status} without a word"


def checked(server: Server, status: int, body: bytes) -> None:
    """Raises `ServerError` for the status of an error, with what to do about it."""
    if status < 400:
        return
    message = f"{server.base} answered {status}: {told(status, body)}"
    if status in (401, 403):
        message += f" (give a key with --api-key or in {KEY_VARIABLES[0]})"
    raise ServerError(message, status=status)


async def choose_model(client: httpx.AsyncClient, server: Server, wanted: str | None) -> str:
    """The name to ask for: `wanted`, else the first that the server has.

    Raises `ServerError`, or `ConfigError` with the served names if `wanted` is none of them.
    """
    with network_faults(server):
        reply = await client.get("/v1/models")
    if reply.status_code == 404 and wanted is not None:
        return wanted  # a server that lists none
    checked(server, reply.status_code, reply.content)
    names = _names(reply.content)
    if wanted is None and names:
        return names[0]
    if wanted is None:
        raise ServerError(f"{server.base} lists no model; name one")
    if names and wanted not in names:
        raise ConfigError(f"{server.base} has no model {wanted!r}; it serves {', '.join(names)}")
    return wanted


def _names(body: bytes) -> list[str]:
    try:
        cards = msgspec.json.decode(body)["data"]
        return [str(card["id"]) for card in cards]
    except (msgspec.DecodeError, LookupError, TypeError):
        return []
