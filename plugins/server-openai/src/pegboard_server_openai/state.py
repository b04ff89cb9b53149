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
    stores_responses: bool = attrs.field(default=False, kw_only=True)
    """``/v1/responses`` are kept."""
    created: int = attrs.field(factory=lambda: int(time.time()))
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
