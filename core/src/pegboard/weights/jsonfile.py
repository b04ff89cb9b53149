"""Reading the JSON files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pegboard.errors import CheckpointError

__all__ = ["read_object"]

_MAX_BYTES = 256 * 1024 * 1024


def read_object(file: Path) -> dict[str, Any]:
    """The content of a JSON file that must hold an object."""
    try:
        if file.exists() and not file.is_file():  # opening a FIFO would wait for a writer
            raise CheckpointError(f"{file}: is not a regular file")
        if file.stat().st_size > _MAX_BYTES:
            raise CheckpointError(f"{file}: more than {_MAX_BYTES} bytes; too long for a JSON file")
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: a JSON object is expected, not {type(value).__name__}")
    return value
