"""A page to chat with the model that Pegboard serves."""

from __future__ import annotations

from pegboard.api.endpoint import Endpoint
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"endpoint": 0}


@hookimpl
def pegboard_endpoints() -> tuple[Endpoint, ...]:
    """``/ui`` and the files that it loads."""
    return (Endpoint(name="webui", routes="pegboard_webui.page:routes"),)
