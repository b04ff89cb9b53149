"""The worker half: reads and writes the files, in threads of its own.

The step thread only copies blocks that are to be saved to host memory, so that they may be used
again at once, and hands everything else to the pool. A load copies into the cache from the pool's
threads, under a lock that giving it up takes too: after that nothing is written to its blocks.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from pegboard.api.connector import (
    FailedBlock,
    Load,
    Piece,
    TransferReport,
    WorkerHalf,
    WorkerHalfContext,
)
from pegboard.errors import UnsupportedError
from pegboard_connector_filesystem.blockfile import BlockFileError
from pegboard_connector_filesystem.folder import Folder
from pegboard_connector_filesystem.messages import Handshake, Orders, Save, Told, pack
from pegboard_connector_filesystem.pages import Pages, Staged
from pegboard_connector_filesystem.pool import LOAD, REMOVE, SAVE, SCAN, Pool
from pegboard_connector_filesystem.settings import Settings

if TYPE_CHECKING:
    import torch

    from pegboard.api.kv import KVCacheConfig, KVTensors

__all__ = ["FilesystemWorker"]

PATIENCE = 0.8
"""Part of a load's time after which the worker gives it up, before the scheduler does."""

_OF_ONE_FILE = frozenset(
    (errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG)
)
"""Errors that say nothing of the disk: a folder, say, has the name of a block's file."""

_log = logging.getLogger("pegboard.connector.filesystem")


class _Flight:
    """A load on its way."""

    def __init__(self, load: Load, pages: Pages, deadline: float) -> None:
        self.load = load
        self.pages = pages
        self.deadline = deadline
        self.after = pages.mark()
        self.left = len(load.pieces)
        self.failed: list[FailedBlock] = []
        self.given_up = False
        self.lock = threading.Lock()

    def give_up(self) -> None:
        """Nothing is written to its blocks once this returns."""
        with self.lock:
            self.given_up = True

    def place(self, piece: Piece, buffer: torch.Tensor) -> bool:
        """Fill one block, unless it is too late."""
        with self.lock:
            if self.given_up or time.monotonic() > self.deadline:
                return False
            self.pages.copy_in(piece.group, piece.block, buffer, self.after)
            return True

    def done(self, piece: Piece, good: bool) -> bool:
        """One piece is over; whether it was the last one."""
        with self.lock:
            if not good:
                bad = FailedBlock(self.load.load_id, piece.group, piece.block)
                self.failed.append(bad)
            self.left -= 1
            return self.left == 0


class FilesystemWorker(WorkerHalf):
    """Half of the connector ``filesystem``."""

    def __init__(self, ctx: WorkerHalfContext) -> None:
        self._settings = Settings.read(ctx.config.kv_connector_extra_config)
        if ctx.ranks != 1:
            raise UnsupportedError(
                f"KV connector 'filesystem' serves engines of one rank, not {ctx.ranks}"
            )
        self._identity = ctx.identity
        self._writes = ctx.config.saves
        self._pages: Pages | None = None
        self._pool: Pool | None = None
        self._saves: Sequence[Save] = ()
        self._flights: dict[int, _Flight] = {}
        self._lock = threading.Lock()  # guards what follows
        self._told = Told()
        self._over: list[_Flight] = []
        self._counts: Counter[str] = Counter()
        self._queued = 0  # bytes
        self._paused_until = 0.0
        self._scanning = False
        self._skipped = False
        self._next_scan = 0.0

    # The cache comes and goes

    def attach(self, kv: Sequence[KVTensors], cache: KVCacheConfig, device: torch.device) -> Any:
        self._pages = Pages(kv, device)
        self._sizes = self._pages.sizes()
        self._folder = Folder(self._settings, self._identity, self._sizes)
        if self._writes:
            self._settings.check_room(max(self._folder.file_sizes().values(), default=0))
        if self._writes:
            self._folder.prepare()
        files = self._folder.list(clean=self._writes)
        if self._pool is None:
            self._pool = Pool(self._settings.threads, "kv-filesystem")
        self._next_scan = time.monotonic() + self._settings.rescan_seconds
        return pack(Handshake(self._folder.file_sizes(), files))

    def detach(self) -> None:
        self._pages = None
        for flight in self._flights.values():
            flight.give_up()

    def close(self) -> None:
        if self._pool is None:
            return
        drained = self._pool.drain(self._settings.drain_seconds)
        given_up = self._pool.close()
        if not drained:
            _log.warning("%d blocks were not written before the engine's end", given_up)

    # Steps

    def start_load(self, metadata: Any) -> None:
        self._saves = ()
        self._maybe_scan()
        if metadata is None:
            return
        orders = msgspec.convert(metadata, Orders)
        for load_id in orders.dropped:
            self.drop(load_id)
        for name in orders.removes:
            self._submit(REMOVE, partial(self._remove, [name]))
        for load in orders.loads:
            self._begin(load)
        self._saves = orders.saves

    def drop(self, load_id: int) -> bool:
        flight = self._flights.get(load_id)
        if flight is not None:
            flight.give_up()
        return True

    def wait_save(self) -> None:
        saves, self._saves = self._saves, ()
        for save in saves:
            nbytes = self._sizes[save.group]
            staged = self._stage(save, nbytes)
            if staged is None:
                self._submit(REMOVE, partial(self._remove, save.victims))
                continue
            self._submit(SAVE, partial(self._save, save, staged, nbytes))

    def poll(self) -> TransferReport:
        with self._lock:
            self._resume()
            told, self._told = self._told, Told()
            over, self._over = self._over, []
            counts, self._counts = self._counts, Counter()
        report = TransferReport(stats={f"filesystem_{n}": float(c) for n, c in counts.items()})
        for flight in over:
            self._flights.pop(flight.load.load_id, None)
            report.received.append(flight.load.load_id)
            report.failed += flight.failed
        if told != Told():
            report.extra = pack(told)
        return report

    def _submit(self, urgency: int, task: Any) -> None:
        assert self._pool is not None, "attach comes first"
        self._pool.submit(urgency, task)

    # Loads

    def _begin(self, load: Load) -> None:
        assert self._pages is not None, "attach comes first"
        deadline = time.monotonic() + PATIENCE * self._settings.load_timeout
        flight = self._flights[load.load_id] = _Flight(load, self._pages, deadline)
        if not load.pieces:
            self._over.append(flight)
        for piece in load.pieces:
            self._submit(LOAD, partial(self._load, flight, piece))

    def _load(self, flight: _Flight, piece: Piece) -> None:
        good = False
        try:
            if not flight.given_up:
                good = self._read(flight, piece)
        finally:
            if flight.done(piece, good):
                with self._lock:
                    self._over.append(flight)

    def _read(self, flight: _Flight, piece: Piece) -> bool:
        """Read one block; False if it cannot be had."""
        nbytes, name = self._sizes[piece.group], self._folder.name(piece.group, piece.key)
        buffer = flight.pages.host_buffer(nbytes)
        try:
            self._folder.read(piece.group, piece.key, buffer.numpy().data)
        except FileNotFoundError:  # another engine made room
            self._note("missing_files", gone=name)
            return False
        except BlockFileError as error:
            _log.warning("%s is removed: %s", name, error)
            with suppress(OSError):
                self._folder.remove(name)
            self._note("bad_files", gone=name)
            return False
        except OSError as error:
            _log.warning("%s cannot be read: %s", name, error)
            self._note("read_errors", gone=name)
            return False
        if not flight.place(piece, buffer):
            return False
        self._note("loaded_blocks")
        self._note("loaded_bytes", nbytes)
        return True

    # Saves

    def _stage(self, save: Save, nbytes: int) -> Staged | None:
        """A copy of the block in host memory; None if it is not to be saved."""
        name = self._folder.name(save.group, save.key)
        with self._lock:
            full = self._queued + nbytes > self._settings.queue_bytes
            if full or self._paused or self._pages is None:
                self._told.unsaved.append(name)
                self._counts["dropped_saves"] += 1
                return None
            self._queued += nbytes
        return self._pages.copy_out(save.group, save.block, nbytes)

    def _save(self, save: Save, staged: Staged, nbytes: int) -> None:
        name, good = self._folder.name(save.group, save.key), False
        try:
            self._remove(save.victims)
            if not self._paused:
                self._folder.write(save.group, save.key, staged.content())
                good = True
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) in _OF_ONE_FILE:
                self._skip(name, error)
            else:
                self._pause(error)
        finally:
            with self._lock:
                self._queued -= nbytes
                (self._told.stored if good else self._told.unsaved).append(name)
                self._counts["saved_blocks" if good else "dropped_saves"] += 1
                self._counts["saved_bytes"] += nbytes if good else 0

    def _remove(self, names: Sequence[str]) -> None:
        for name in names:
            try:
                self._folder.remove(name)
            except OSError as error:
                _log.warning("%s cannot be removed: %s", name, error)
                self._note("remove_errors")
            with self._lock:
                self._told.removed.append(name)

    @property
    def _paused(self) -> bool:
        return self._paused_until > 0

    def _skip(self, name: str, error: Exception) -> None:
        """Something stands in the place of one file; others can be written."""
        self._note("write_errors")
        if not self._skipped:
            self._skipped = True
            _log.warning("%s, and perhaps others, cannot be written: %s", name, error)

    def _pause(self, error: Exception) -> None:
        """Stop saving for a while."""
        with self._lock:
            first = not self._paused
            self._paused_until = time.monotonic() + self._settings.pause_seconds
            self._counts["write_errors"] += 1
            self._told.paused = True
        if first:
            _log.warning(
                "nothing is saved for %g s: a block could not be written (%s)",
                self._settings.pause_seconds,
                error,
            )

    def _resume(self) -> None:
        """Save again, if the time has come."""
        if self._paused and not self._told.paused and time.monotonic() >= self._paused_until:
            self._paused_until = 0.0
            self._told.paused = False

    # The rest

    def _maybe_scan(self) -> None:
        """List the folder, now and then."""
        every = self._settings.rescan_seconds
        if every == 0 or self._scanning or time.monotonic() < self._next_scan:
            return
        self._scanning = True
        self._submit(SCAN, self._scan)

    def _scan(self) -> None:
        started = time.monotonic()
        try:
            files = self._folder.list(clean=self._writes)
            with self._lock:
                self._told.listing = files
        finally:
            now = time.monotonic()
            # A large folder is listed less often, so that it takes a twentieth of a thread at most.
            self._next_scan = now + max(self._settings.rescan_seconds, 20 * (now - started))
            self._scanning = False

    def _note(self, count: str, number: int = 1, gone: str | None = None) -> None:
        with self._lock:
            self._counts[count] += number
            if gone is not None:
                self._told.gone.append(gone)
