"""The stat logger ``log``."""

from __future__ import annotations

import logging
import threading
import time

from pegboard.api.scheduler import CacheStats, SchedulerStats
from pegboard.api.stat_logger_front import FrontContext, RequestAdded, RequestFacts, TokenBatch
from pegboard_stats_log.settings import Settings

__all__ = ["LogLine"]

_LOG = logging.getLogger("pegboard.plugin.stats-log")


class LogLine:
    """Counts, and says every few seconds what it counted, on a thread of its own; nothing while
    there is no work."""

    def __init__(self, ctx: FrontContext) -> None:
        settings: Settings = ctx.settings or Settings()
        self._interval = settings.interval
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stats = SchedulerStats()
        self._said = CacheStats()
        """As of the last line."""
        self._prompt = self._generated = 0
        self._active = False
        """Something happened since the last line."""
        self._thread = threading.Thread(target=self._run, name="pegboard-log-line", daemon=True)
        self._thread.start()

    def added(self, request: RequestAdded) -> None:
        self._active = True

    def tokens(self, batch: TokenBatch) -> None:
        with self._lock:
            self._active = True
            self._prompt += batch.prompt_tokens
            self._generated += batch.tokens

    def finished(self, facts: RequestFacts) -> None:
        self._active = True

    def scheduler(self, stats: SchedulerStats) -> None:
        with self._lock:
            self._stats = stats
            self._active = self._active or stats.running + stats.waiting > 0

    def close(self) -> None:
        """Ends the thread; what it had not said is not said."""
        self._stop.set()
        self._thread.join(1.0)

    def _run(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(self._interval):
            now = time.monotonic()
            line = self._line(now - last)
            last = now
            if line:
                _LOG.info("%s", line)

    def _line(self, seconds: float) -> str:
        """What happened in so many seconds; empty if nothing did. Counts begin anew."""
        with self._lock:
            if not self._active:
                return ""
            prompt, generated = self._prompt / seconds, self._generated / seconds
            self._prompt = self._generated = 0
            stats, self._active = self._stats, self._stats.running + self._stats.waiting > 0
            new = stats.cache.since(self._said)
            self._said = stats.cache
        hits = new if new.queried_tokens else stats.cache
        used = stats.used_blocks / stats.total_blocks if stats.total_blocks else 0.0
        return (
            f"prompt {prompt:.1f} tokens/s, generation {generated:.1f} tokens/s, "
            f"{stats.running} running, {stats.waiting} waiting, "
            f"KV cache {used:.1%}, prefix hits {hits.hit_rate:.1%}"
        ).replace("%", " %")
