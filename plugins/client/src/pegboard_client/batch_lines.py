"""Lines of batch files: what is asked, what was answered, and which of them still have to be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import attrs
import msgspec

from pegboard.errors import ConfigError

__all__ = ["PATHS", "BadLine", "Job", "Progress", "error_line", "jobs", "read_output", "reply_line"]

PATHS = ("/v1/chat/completions", "/v1/completions")
"""What a line may ask for."""

_MISSING = {
    "/v1/embeddings": "embeddings are not built",
    "/v1/moderations": "moderations are not built",
    "/v1/responses": "the Responses API keeps no batches here; ask /v1/chat/completions",
}


@attrs.frozen
class Job:
    """One line that can be sent."""

    custom_id: str
    path: str
    body: dict[str, Any]


@attrs.frozen
class BadLine:
    """One that cannot."""

    number: int
    """From 1."""
    code: str
    message: str
    custom_id: str | None = None


@attrs.define
class Progress:
    """What an output file holds."""

    answered: set[str] = attrs.field(factory=set)
    """Ids."""
    refused: set[int] = attrs.field(factory=set)
    """Numbers of bad lines."""
    failed: int = 0

    @property
    def count(self) -> int:
        return len(self.answered) + len(self.refused)


def jobs(file: BinaryIO, model: str | None) -> Iterator[tuple[int, Job | BadLine]]:
    """Numbers and lines; empty ones are passed over. `model` is put into bodies without one."""
    seen: set[str] = set()
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            job = _job(number, line, model)
        except _RefusedError as refused:
            yield number, refused.line
            continue
        if job.custom_id in seen:
            message = f"custom_id {job.custom_id!r} stands on an earlier line too"
            yield number, BadLine(number, "duplicate_custom_id", message, job.custom_id)
            continue
        seen.add(job.custom_id)
        yield number, job


class _RefusedError(Exception):
    def __init__(self, line: BadLine) -> None:
        super().__init__(line.message)
        self.line = line


def _job(number: int, line: bytes, model: str | None) -> Job:
    try:
        fields = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _RefusedError(BadLine(number, "invalid_json", f"no JSON: {error}")) from None
    if not isinstance(fields, dict):
        raise _RefusedError(BadLine(number, "invalid_line", "no JSON object"))
    given = fields.get("custom_id")
    if not isinstance(given, str) or not given:
        message = f"custom_id is {given!r}, must be a text that is not empty"
        raise _RefusedError(BadLine(number, "invalid_custom_id", message))
    fault = _fault(fields)
    if fault is not None:
        raise _RefusedError(BadLine(number, *fault, given))
    body = fields["body"]
    if model is not None and body.get("model") is None:
        body = {**body, "model": model}
    return Job(given, fields["url"], body)


def _fault(fields: Mapping[str, Any]) -> tuple[str, str] | None:
    """Code and message of what is wrong with a line."""
    method, url, body = (fields.get(name) for name in ("method", "url", "body"))
    if method != "POST":
        return "invalid_method", f"method is {method!r}, must be 'POST'"
    if url not in PATHS:
        why = f" ({_MISSING[url]})" if isinstance(url, str) and url in _MISSING else ""
        return "invalid_url", f"url {url!r} is not served{why}; allowed are {', '.join(PATHS)}"
    if not isinstance(body, dict):
        return "invalid_body", f"body is {type(body).__name__}, must be an object"
    if body.get("stream"):
        return "invalid_body", "body.stream is true: answers of a batch are not streamed"
    return None


def error_line(bad: BadLine) -> bytes:
    """The output for a bad line."""
    error = {"code": bad.code, "message": f"line {bad.number}: {bad.message}", "line": bad.number}
    content = {
        "id": f"batch_req_line_{bad.number}",
        "custom_id": bad.custom_id,
        "response": None,
        "error": error,
    }
    return msgspec.json.encode(content) + b"\n"


def reply_line(number: int, job: Job, status: int, request_id: str, body: bytes) -> bytes:
    """The output for a line that was answered, well or with an error of the server."""
    try:
        content: Any = msgspec.Raw(msgspec.json.encode(msgspec.json.decode(body)))
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = {"error": {"message": body.decode("utf-8", "replace"), "type": "server_error"}}
    response = {"status_code": status, "request_id": request_id, "body": content}
    return (
        msgspec.json.encode(
            {
                "id": f"batch_req_line_{number}",
                "custom_id": job.custom_id,
                "response": response,
                "error": None,
            }
        )
        + b"\n"
    )


class _Response(msgspec.Struct):
    status_code: int


class _Error(msgspec.Struct):
    line: int | None = None


class _Output(msgspec.Struct):
    custom_id: str | None
    response: _Response | None = None
    error: _Error | None = None


def read_output(path: str, *, retry_failed: bool) -> Progress:
    """What was answered before. Half a line at the end, of a run that was killed, is cut off; with
    `retry_failed`, so are lines that tell of a failure, wherever they stand.

    Raises `ConfigError` if the file holds something else.
    """
    progress, kept, whole = Progress(), [], True
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                whole = line.endswith(b"\n")
                good = whole and _note(progress, line, f"{path}, line {number}", retry_failed)
                if good and retry_failed:
                    kept.append(line)
                elif not whole:
                    cut = len(line)
    except FileNotFoundError:
        return progress
    if retry_failed:
        _replace(path, kept)
    elif not whole:
        os.truncate(path, os.path.getsize(path) - cut)
    return progress


def _note(progress: Progress, line: bytes, where: str, retry_failed: bool) -> bool:
    """Whether the line stays."""
    try:
        output = msgspec.json.decode(line, type=_Output)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} is no line of a batch's output: {error}") from None
    failed = output.response is None or output.response.status_code >= 400
    if failed and retry_failed:
        return False
    progress.failed += failed
    if output.error is not None and output.error.line is not None:
        progress.refused.add(output.error.line)
    elif output.custom_id is not None:
        progress.answered.add(output.custom_id)
    return True


def _replace(path: str, lines: list[bytes]) -> None:
    fresh = f"{path}.tmp"
    with open(fresh, "wb") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
