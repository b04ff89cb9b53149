"""How the server answers, and where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from pegboard.api.params import MAX_SEQUENCES
from pegboard.errors import ConfigError

__all__ = ["AppOptions", "ServerOptions"]


def _texts(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(values)


def _seconds(_: Any, field: Any, value: Any) -> None:
    if value is not None and not 0 <= value < float("inf"):
        name = field.name.replace("_", "-")
        raise ConfigError(f"--{name} {value} is not allowed: seconds, 0 or more")


def _above_zero(_: Any, field: Any, value: Any) -> None:
    _seconds(_, field, value)
    if value == 0:
        raise ConfigError(f"--{field.name.replace('_', '-')} 0 is not allowed: more than 0")


def _count(_: Any, field: Any, value: Any) -> None:
    if value is not None and value < 1:
        name = field.name.replace("_", "-")
        raise ConfigError(f"--{name} {value} is not allowed: at least 1")


_ALL = ("*",)
_FORMATS = ("auto", "string", "openai")


def _sequences(_: Any, field: Any, value: int) -> None:
    if not 1 <= value <= MAX_SEQUENCES:
        raise ConfigError(
            f"--{field.name.replace('_', '-')} {value} is not allowed: 1 to {MAX_SEQUENCES}"
        )


@attrs.frozen(kw_only=True)
class AppOptions:
    """How the server answers."""

    names: tuple[str, ...] = attrs.field(converter=_texts)
    """Served names of the model, at least one."""
    root: str = ""
    """The model as the operator named it."""
    api_keys: tuple[str, ...] = attrs.field(default=(), converter=_texts, repr=False)
    """Without any, everybody is served."""
    max_body_bytes: int = attrs.field(default=32 << 20, validator=_count)
    max_concurrent_requests: int | None = attrs.field(default=None, validator=_count)
    """Under ``/v1``; None: no limit."""
    max_n_sequences: int = attrs.field(default=MAX_SEQUENCES, validator=_sequences)
    """Most sequences of one prompt (`n`, `best_of`)."""
    request_timeout: float | None = attrs.field(default=None, validator=_above_zero)
    """Seconds that a request may take; one may ask for less."""
    step_timeout: float = attrs.field(default=300.0, validator=_seconds)
    """Seconds of silence after which a working engine counts as hung; 0: never."""
    stream_keep_alive: float | None = attrs.field(default=None, validator=_above_zero)
    """Seconds of silence after which a stream of OpenAI's says that it lives; None: never."""
    allowed_origins: tuple[str, ...] = attrs.field(default=_ALL, converter=_texts)
    allowed_methods: tuple[str, ...] = attrs.field(default=_ALL, converter=_texts)
    allowed_headers: tuple[str, ...] = attrs.field(default=_ALL, converter=_texts)
    allow_credentials: bool = False
    root_path: str = ""
    """Prefix that a proxy takes away."""
    chat_template_content_format: str = attrs.field(default="auto")
    """How contents of messages reach the template: ``auto``, ``string`` or ``openai``."""
    trust_request_chat_template: bool = False
    """Requests may bring templates of their own."""
    enable_response_store: bool = False
    """What ``/v1/responses`` answers is kept in memory, a bounded number of them."""
    dev: bool = False
    """The routes for development are there."""

    @chat_template_content_format.validator
    def _check_format(self, _: Any, value: str) -> None:
        if value not in _FORMATS:
            raise ConfigError(
                f"--chat-template-content-format {value} is not allowed: {', '.join(_FORMATS)}"
            )

    @names.validator
    @api_keys.validator
    def _check(self, attribute: Any, value: tuple[str, ...]) -> None:
        if not all(value) or (not value and attribute.name == "names"):
            raise ConfigError(f"{attribute.name} must not be empty, nor hold an empty text")


@attrs.frozen(kw_only=True)
class ServerOptions:
    """Where the server listens, and how it ends."""

    host: str = "127.0.0.1"
    port: int = attrs.field(default=8000)
    uds: str | None = None
    """Path of a Unix socket, in place of host and port."""
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    ssl_cert_reqs: int = attrs.field(default=0)
    shutdown_grace: float = attrs.field(default=10.0, validator=_seconds)
    """Seconds that running requests get at the end."""
    exit_on_engine_death: bool = True

    @port.validator
    def _check_port(self, _: Any, value: int) -> None:
        if not 0 <= value <= 65535:
            raise ConfigError(f"--port {value} is not allowed: 0 to 65535")

    @ssl_cert_reqs.validator
    def _check_certificates(self, _: Any, value: int) -> None:
        if value not in (0, 1, 2):
            raise ConfigError(f"--ssl-cert-reqs {value} is not allowed: 0, 1 or 2")

    def __attrs_post_init__(self) -> None:
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("--ssl-keyfile is allowed only together with --ssl-certfile")
