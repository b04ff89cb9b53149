"""The folder on the disk: list it, read, write and remove blocks. Safe to call from any thread."""

from __future__ import annotations

import itertools
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pegboard.errors import ConfigError
from pegboard_connector_filesystem.blockfile import HEADER_BYTES, Label, read_block, write_block
from pegboard_connector_filesystem.messages import Found
from pegboard_connector_filesystem.names import (
    SUFFIX,
    TEMPORARY,
    Digest,
    block_name,
    canonical,
    parse_name,
)
from pegboard_connector_filesystem.settings import Settings

__all__ = ["Folder"]

STALE_SECONDS = 60.0
"""Age at which a temporary file is what a dead process left behind: writing one takes far less."""


class Folder:
    """All blocks under one path; those of one identity can be read and written."""

    def __init__(
        self, settings: Settings, identity: Mapping[str, Any], sizes: Mapping[int, int]
    ) -> None:
        """`sizes`: bytes of content of one block, by KV group."""
        self._settings = settings
        self._root = settings.root
        self._digest = Digest(identity)
        self._identity = identity
        self._sizes = dict(sizes)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._changes: dict[str, int | None] | None = None
        """While the folder is listed: sizes of what was written, None for what was removed."""

    def prepare(self) -> None:
        """Make the folder. Raises `ConfigError` if nothing can be written there."""
        own = self._root / self._digest.folder
        try:
            own.mkdir(parents=True, exist_ok=True)
            note = own / "identity.json"
            if not note.exists():
                note.write_text(canonical(self._identity), encoding="utf-8")
        except FileExistsError as error:
            raise self._unusable(error) from None
        except OSError as error:
            if not os.access(own, os.W_OK):
                raise self._unusable(error) from None

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"kv_connector_extra_config: path={self._settings.path!r} is not allowed: a folder "
            f"that can be written to ({error})"
        )

    def name(self, group: int, key: bytes) -> str:
        """Of a block's file."""
        return block_name(self._digest.folder, group, key)

    def file_sizes(self) -> dict[int, int]:
        """Bytes of a block's file, by KV group."""
        return {group: HEADER_BYTES + nbytes for group, nbytes in self._sizes.items()}

    # Blocks

    def write(self, group: int, key: bytes, content: memoryview) -> None:
        """Raises `OSError`; then nothing is left behind."""
        name = self.name(group, key)
        mark = f"{socket.gethostname()}-{os.getpid()}-{id(self)}-{next(self._numbers)}{TEMPORARY}"
        write_block(
            self._root / name,
            self._label(group, key),
            content,
            mark=mark,
            checksum=self._settings.checksum,
            fsync=self._settings.fsync,
        )
        self._changed(name, HEADER_BYTES + len(content))

    def read(self, group: int, key: bytes, content: memoryview) -> None:
        """Fill `content` and mark the file as used now. Raises as `read_block`."""
        path = self._root / self.name(group, key)
        read_block(path, self._label(group, key), content, checksum=self._settings.checksum)
        with suppress(OSError):  # gone meanwhile, or a folder that is only read
            os.utime(path)

    def remove(self, name: str) -> None:
        """Remove a file. Raises `OSError`, but not if it is gone already."""
        with suppress(FileNotFoundError):
            (self._root / name).unlink()
        self._changed(name, None)

    def _label(self, group: int, key: bytes) -> Label:
        return Label(self._digest.full, group, key, self._sizes[group])

    def _changed(self, name: str, size: int | None) -> None:
        with self._lock:
            if self._changes is not None:
                self._changes[name] = size

    # Listing

    def list(self, *, clean: bool) -> list[Found]:
        """All files of blocks under the root, of every identity.

        With `clean`, what dead processes left behind is removed, and so are files of this identity
        whose size is not that of a block.
        """
        with self._lock:
            self._changes = {}
        found = {file.name: file for file in self._walk(clean)}
        with self._lock:
            changes, self._changes = self._changes, None
        for name, size in changes.items():
            if size is None:
                found.pop(name, None)
            else:
                found[name] = Found(name, size, time.time_ns())
        return list(found.values())

    def _walk(self, clean: bool) -> Iterator[Found]:
        for folder in _folders(self._root):
            for shelf in _folders(Path(folder.path)):
                for entry in _entries(Path(shelf.path)):
                    name = f"{folder.name}/{shelf.name}/{entry.name}"
                    found = self._look(name, entry, clean)
                    if found is not None:
                        yield found

    def _look(self, name: str, entry: os.DirEntry[str], clean: bool) -> Found | None:
        """What a file is; None if it is no block."""
        block = parse_name(name)
        leftover = entry.name.endswith(TEMPORARY) and f"{SUFFIX}." in entry.name
        if block is None and not leftover:
            return None
        try:
            facts = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(facts.st_mode):
                return None
            if block is None:
                if clean and time.time() - facts.st_mtime > STALE_SECONDS:
                    (self._root / name).unlink()
                return None
            if self._wrong_size(block, facts.st_size):
                if clean:
                    (self._root / name).unlink()
                return None
        except OSError:  # somebody else was quicker
            return None
        return Found(name, facts.st_size, facts.st_mtime_ns)

    def _wrong_size(self, block: tuple[str, int, bytes], size: int) -> bool:
        folder, group, _ = block
        if folder != self._digest.folder:
            return False
        return group not in self._sizes or size != HEADER_BYTES + self._sizes[group]


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """What is in a folder; nothing if it is gone or may not be read."""
    with suppress(OSError), os.scandir(path) as entries:
        yield from entries


def _folders(path: Path) -> Iterator[os.DirEntry[str]]:
    for entry in _entries(path):
        if entry.is_dir(follow_symlinks=False):
            yield entry
