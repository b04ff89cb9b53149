"""Names of files, and what they say.

::

    <path>/<identity>/<kk>/<group>-<key>.kv      one block of one KV group; kk begins its key
    <path>/<identity>/<kk>/<...>.<...>.tmp       a block while it is written
    <path>/<identity>/identity.json              for people: what the folder's blocks depend on

`identity` is the beginning of the digest of everything that blocks depend on beside their keys, so
that engines of different models, dtypes, layouts or quantisations never look at the same files.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["FORMAT", "SUFFIX", "TEMPORARY", "Digest", "block_name", "canonical", "parse_name"]

FORMAT = 1
"""Version of folders and files; others are foreign."""
SUFFIX = ".kv"
TEMPORARY = ".tmp"

_NAME = re.compile(rf"([0-9a-f]{{32}})/([0-9a-f]{{2}})/(\d{{1,9}})-((?:[0-9a-f]{{2}})+){SUFFIX}")


def canonical(identity: Mapping[str, Any]) -> str:
    """The same text for equal identities, in every process."""
    return json.dumps({"format": FORMAT, **identity}, sort_keys=True, ensure_ascii=False, indent=1)


class Digest:
    """Of an engine's identity."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        self.full = hashlib.sha256(canonical(identity).encode()).digest()
        """32 bytes; stands in every file."""
        self.folder = self.full.hex()[:32]
        """Name of the folder."""


def block_name(folder: str, group: int, key: bytes) -> str:
    """Path of a block's file below the root."""
    text = key.hex()
    return f"{folder}/{text[:2]}/{group}-{text}{SUFFIX}"


def parse_name(name: str) -> tuple[str, int, bytes] | None:
    """Folder, group and key; None for a name that no block has."""
    found = _NAME.fullmatch(name)
    if found is None or not found[4].startswith(found[2]) or str(int(found[3])) != found[3]:
        return None
    return found[1], int(found[3]), bytes.fromhex(found[4])
