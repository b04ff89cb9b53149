"""The scheduler half: what is on the disk, what is loaded, what is saved, what is evicted.

It never touches the disk itself. It knows what the worker half found at the start and reported
since.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

import attrs
import msgspec

from pegboard.api.connector import (
    Allocated,
    Finished,
    Keep,
    Later,
    Match,
    MatchAnswer,
    Now,
    Pending,
    Piece,
    SchedulerHalf,
    SchedulerHalfContext,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
)
from pegboard.errors import UnsupportedError
from pegboard_connector_filesystem.eviction import make_eviction
from pegboard_connector_filesystem.index import Index
from pegboard_connector_filesystem.messages import Handshake, Orders, Save, Told, pack
from pegboard_connector_filesystem.names import Digest, block_name, parse_name
from pegboard_connector_filesystem.settings import Settings

__all__ = ["FilesystemScheduler"]

EVENTS = 4096
"""Most events that wait to be asked for."""
SWEEP_SECONDS = 60.0
WAIT_SECONDS = 2.0
"""Longest time that a request waits for what another one is loading, before it loads the same."""


@attrs.define
class _Question:
    """The last answer for one request, so that asking again costs nothing."""

    version: int = -1
    limit: int = -1
    found: int = 0
    waits_until: float = 0.0
    """0: it has not waited for another request's load."""


@attrs.frozen
class _Reading:
    """A load on its way."""

    names: tuple[str, ...]
    tokens: int
    """That the request need not compute."""
    since: float


class FilesystemScheduler(SchedulerHalf):
    """Half of the connector ``filesystem``."""

    def __init__(self, ctx: SchedulerHalfContext) -> None:
        self._settings = Settings.read(ctx.config.kv_connector_extra_config)
        if len(ctx.handshakes) != 1:
            raise UnsupportedError(
                f"KV connector 'filesystem' serves engines of one rank, not {len(ctx.handshakes)}"
            )
        handshake = msgspec.convert(ctx.handshakes[0], Handshake)
        self._longest = ctx.longest
        self._groups = [group for group in ctx.groups if group.slot_bytes()]
        self._unit = ctx.unit
        self._folder = Digest(ctx.identity).folder
        self._sizes = handshake.sizes
        policy = make_eviction(self._settings.eviction, self._settings.max_bytes)
        self._index = Index(self._settings.max_bytes, policy)
        self._questions: dict[str, _Question] = {}
        self._computed: dict[str, int] = {}
        self._reading: dict[int, _Reading] = {}
        self._loading: Counter[str] = Counter()
        """Files that are being read."""
        self._counts: Counter[str] = Counter()
        self._events: deque[StoreEvent] = deque(maxlen=EVENTS)
        self._paused = False
        self._quiet = False
        """The weights changed: nothing on the disk belongs to them."""
        self._swept = time.monotonic()
        self._index.listed(handshake.files)
        self._removes = self._overflow() if ctx.config.saves else []
        self._budgeted = ctx.config.saves

    # Questions

    def match(self, question: Match) -> MatchAnswer:
        if self._quiet:
            return Now(0)
        name = question.request.request_id
        if name not in self._questions:
            self._counts["lookups"] += 1
        asked = self._questions.setdefault(name, _Question())
        if (asked.version, asked.limit) != (self._index.version, question.limit):
            hashes = question.request.block_hashes
            asked.found = self._longest(hashes, question.limit, self._has)
            asked.version, asked.limit = self._index.version, question.limit
        if asked.found <= question.computed:
            return Now(0)
        if self._should_wait(question, asked):
            return Pending()
        self._computed[name] = question.computed
        return Later(asked.found - question.computed, self._settings.load_timeout)

    def _should_wait(self, question: Match, asked: _Question) -> bool:
        """Another request is loading the next block: soon it is in the engine's own cache."""
        hashes, computed = question.request.block_hashes, question.computed
        for group in self._groups:
            unit = (computed // group.block_size + 1) * group.block_size // self._unit - 1
            shared = unit < len(hashes) and self._name(group.index, hashes[unit]) in self._loading
            if shared:
                now = time.monotonic()
                asked.waits_until = asked.waits_until or now + WAIT_SECONDS
                return now < asked.waits_until
        if asked.waits_until:  # once is enough: the cache may be off
            asked.waits_until = -1.0
        return False

    def allocated(self, what: Allocated) -> None:
        load, request_id = what.load, what.request.request_id
        names = tuple(self._name(piece.group, piece.key) for piece in load.pieces)
        tokens = load.tokens - self._computed.get(request_id, 0)
        self._reading[load.load_id] = _Reading(names, tokens, time.monotonic())
        self._index.use(names)
        self._loading.update(names)

    def finished(self, what: Finished) -> Keep | None:
        self._questions.pop(what.request.request_id, None)
        self._computed.pop(what.request.request_id, None)
        return None

    def _has(self, group: int, key: bytes) -> bool:
        return self._name(group, key) in self._index

    def _name(self, group: int, key: bytes) -> str:
        return block_name(self._folder, group, key)

    # Steps

    def step(self, view: StepView) -> StepOrder:
        self._sweep()
        pieces = () if self._paused or self._quiet else view.filled
        saves = [save for piece in pieces for save in self._save(piece)]
        removes, self._removes = self._removes, []
        orders = Orders(list(view.loads), list(view.dropped), saves, removes)
        idle = not (orders.loads or orders.dropped or saves or removes)
        return StepOrder(None if idle else pack(orders))

    def _save(self, piece: Piece) -> Iterable[Save]:
        """The order to save a block, if it is not on the disk and there is room."""
        name = self._name(piece.group, piece.key)
        if name in self._index:
            return
        victims = self._index.reserve(name, self._sizes[piece.group])
        if victims is None:
            return
        self._tell("removed", victims)
        yield Save(piece.group, piece.block, piece.key, victims)

    def _overflow(self) -> list[str]:
        victims = self._index.overflow()
        self._tell("removed", victims)
        return victims

    def _sweep(self) -> None:
        now = time.monotonic()
        if now - self._swept < SWEEP_SECONDS:
            return
        self._swept = now
        self._index.sweep()
        limit = now - 2 * self._settings.load_timeout
        for load_id in [n for n, reading in self._reading.items() if reading.since < limit]:
            self._end(self._reading.pop(load_id))

    # Reports

    def report(self, report: TransferReport) -> None:
        failed = Counter(block.load_id for block in report.failed)
        for load_id in report.received:
            reading = self._reading.pop(load_id, None)
            if reading is not None:
                self._end(reading)
                self._count_load(reading, failed[load_id])
        if report.extra is not None:
            self._learn(msgspec.convert(report.extra, Told))

    def _end(self, reading: _Reading) -> None:
        """Its files are read no longer."""
        self._index.free(reading.names)
        self._loading.subtract(reading.names)
        self._loading = +self._loading

    def _count_load(self, reading: _Reading, failed: int) -> None:
        self._counts["failed_loads" if failed else "hits"] += 1
        if not failed:
            self._counts["hit_tokens"] += reading.tokens

    def _learn(self, told: Told) -> None:
        if told.paused is not None:
            self._paused = told.paused
        for name in told.removed:
            self._index.removed(name)
        for name in told.unsaved:
            self._index.cancel(name)
        self._tell("stored", filter(self._index.store, told.stored))
        self._tell("removed", filter(self._index.gone, told.gone))
        if told.listing is None:
            return
        new, gone = self._index.listed(told.listing, {*told.stored}, {*told.removed, *told.gone})
        self._tell("stored", new)
        self._tell("removed", gone)
        if self._budgeted:
            self._removes += self._overflow()

    # The rest

    def events(self) -> Sequence[StoreEvent]:
        told = list(self._events)
        self._events.clear()
        return told

    def _tell(self, kind: str, names: Iterable[str]) -> None:
        """Events, of this engine's own blocks."""
        for found in map(parse_name, names):
            if found is not None and found[0] == self._folder:
                self._events.append(StoreEvent(kind, found[1], (found[2],), "disk"))

    def stats(self) -> Mapping[str, float]:
        names = ("lookups", "hits", "hit_tokens", "failed_loads")
        return {
            **{f"filesystem_{name}": float(self._counts[name]) for name in names},
            "filesystem_files": float(len(self._index)),
            "filesystem_bytes": float(self._index.bytes),
            "filesystem_evictions": float(self._index.evictions),
            "filesystem_paused": float(self._paused),
        }

    def reset(self, reason: str) -> None:
        """Blocks stay right when the engine forgets its own cache; not when it has new weights."""
        if reason != "weights" or self._quiet:
            return
        self._quiet = True
        logging.getLogger("pegboard.connector.filesystem").warning(
            "the weights changed: nothing is loaded from or saved to %s any more",
            self._settings.path,
        )
