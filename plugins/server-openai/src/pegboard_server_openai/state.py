"""What the server's routes share."""

from __future__ import annotations

import itertools
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

import attrs

from pegboard_server_openai.engine import Engine
from pegboard_server_openai.faults import HttpError
from pegboard_server_openai.http_figures import HttpTally
from pegboard_server_openai.keep_alive import KeepAlive
from pegboard_server_openai.options import AppOptions

__all__ = ["ServerState"]

_ID = re.compile(r"[\x21-\x7e]{1,200}")


@attrs.frozen(eq=False)
class ServerState:
    """The engine, and how clients may call its model."""

    engine: Engine
    names: tuple[str, ...]
    """Served names of the model; answers carry the one that was asked for."""
    root: str = ""
    """The model as the operator named it."""
    options: AppOptions = attrs.field(factory=lambda: AppOptions(names=("model",)))
    created: int = attrs.field(factory=lambda: int(time.time()))
    http: HttpTally = attrs.field(factory=HttpTally, repr=False)
    """What was counted of requests; plugins that write metrics down ask for its `figures`."""
    live: dict[str, str] = attrs.field(factory=dict, repr=False)
    """Answer ids by the engine ids of requests that are being answered."""
    _serial: Iterator[int] = attrs.field(factory=itertools.count, repr=False)

    def model_name(self, wanted: str | None) -> str:
        """The name to answer with. Raises `HttpError` 404 for one that is not served."""
        if wanted is None:
            return self.names[0]
        if wanted not in self.names:
            raise HttpError(
                404,
                f"the model {wanted!r} does not exist; served are {', '.join(self.names)}",
                param="model",
                code="model_not_found",
            )
        return wanted

    def answer_id(self, prefix: str, request: Any, given: str | None) -> str:
        """The id of an answer, from the client's, if it sent one."""
        wanted = given if given is not None else request.headers.get("x-request-id")
        if wanted is None:
            return f"{prefix}-{uuid.uuid4().hex}"
        if not _ID.fullmatch(wanted):
            raise HttpError(
                400,
                "the request id must be 1 to 200 printable ASCII characters without spaces",
                param="request_id",
            )
        return f"{prefix}-{wanted}"

    def engine_id(self, answer_id: str) -> str:
        """A name in the engine that no other request has, also if a client uses an id twice."""
        return f"{answer_id}#{next(self._serial)}"

    def check_sequences(self, body: Any) -> None:
        """Raise `HttpError` if `n`, or `best_of` where the body has it, is more than is allowed."""
        most = self.options.max_n_sequences
        for field in ("n", "best_of"):
            value = getattr(body, field, None)
            if value is not None and value > most:
                raise HttpError(
                    400,
                    f"{field}={value} is not allowed: at most {most} (--max-n-sequences)",
                    param=field,
                )

    def deadline(self, wanted: float | None) -> float | None:
        """Seconds that a request may take which asks for `wanted`."""
        if wanted is not None and not 0 < wanted < float("inf"):
            raise HttpError(
                400, f"timeout={wanted} is not allowed: seconds, more than 0", param="timeout"
            )
        most = self.options.request_timeout
        if wanted is None or most is None:
            return most if wanted is None else wanted
        return min(wanted, most)

    def check_template(self, given: str | None) -> None:
        """Raise `HttpError` if a request brings a template and may not."""
        if given is not None and not self.options.trust_request_chat_template:
            raise HttpError(
                400,
                "chat_template is not allowed in requests: the server runs without "
                "--trust-request-chat-template",
                param="chat_template",
            )

    @property
    def keep_alive(self) -> KeepAlive | None:
        """Of OpenAI's streams, if the operator wants it."""
        seconds = self.options.stream_keep_alive
        return None if seconds is None else KeepAlive(seconds)

    @property
    def silent_too_long(self) -> bool:
        """The engine works and tells nothing for longer than a step may take."""
        limit = self.options.step_timeout
        return bool(limit) and self.engine.silent_for > limit
