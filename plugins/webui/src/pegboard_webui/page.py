"""The page and its files, as they lie in the package: read once, answered from memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import PurePosixPath

import attrs
from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route

__all__ = ["CONTENT_SECURITY_POLICY", "HEADERS", "Asset", "read_assets", "routes"]

_INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Nothing but files of this server, no inline code, no text that becomes markup, in no frame. What
a model writes could do nothing, even if the page failed to treat it as text."""

HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # A browser asks each time, and gets 304 unless another version was installed.
    "cache-control": "no-cache",
}
"""Of every answer."""


@attrs.frozen
class Asset:
    """One file of the page."""

    path: str
    """Where it is answered."""
    body: bytes = attrs.field(repr=False)
    media_type: str
    tag: str
    """Its ETag: changes with its content."""

    async def __call__(self, request: Request) -> Response:
        """The file, or 304 to who has it."""
        headers = {**HEADERS, "etag": self.tag}
        known = request.headers.get("if-none-match", "")
        if self.tag in (part.strip().removeprefix("W/") for part in known.split(",")):
            return Response(status_code=304, headers=headers)
        return Response(self.body, headers={**headers, "content-type": self.media_type})


def routes(ctx: EndpointContext) -> Iterable[Route]:
    """``/ui`` and its files. They need no key: all that the page shows, it asks for with the key
    that the user gave."""
    for asset in read_assets():
        yield Route("GET", asset.path, asset, _summary(asset), public=True)


def read_assets() -> list[Asset]:
    """All files of the page, sorted by name."""
    entries = sorted(files(__package__).joinpath("static").iterdir(), key=lambda entry: entry.name)
    return [_asset(entry.name, entry.read_bytes()) for entry in entries]


def _asset(name: str, body: bytes) -> Asset:
    path = "/ui" if name == _INDEX else f"/ui/{name}"
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(path, body, _TYPES[PurePosixPath(name).suffix], tag)


def _summary(asset: Asset) -> str:
    return "A page to chat with the model" if asset.path == "/ui" else "A file of the page /ui"
