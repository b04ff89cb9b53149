"""What a container may use of its host: Linux control groups, versions 1 and 2.

Every function takes the root of the file system to look in, so that tests can bring their own. A
file that is absent or unreadable means no limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs

__all__ = ["MemoryLimit", "cpu_quota", "memory_limit"]

_UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2⁶³."""


@attrs.frozen
class MemoryLimit:
    """The tightest limit on the way up from this process's group."""

    limit: int
    """Bytes that the group may hold."""
    used: int
    """Bytes that it holds and that cannot be reclaimed at once."""


def memory_limit(root: Path = Path("/")) -> MemoryLimit | None:
    """The memory limit with the least room left, None if there is none."""
    found = [*_memory_v2(root), *_memory_v1(root)]
    return min(found, key=lambda limit: limit.limit - limit.used, default=None)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Processors' worth of time that the group may use, e.g. 1.5; None if there is no limit."""
    quotas = []
    for group in _groups(root, "cpu", ""):
        quota, _, period = (_text(group / "cpu.max") or "max").partition(" ")
        if quota.isdigit() and period.isdigit():
            quotas.append(int(quota) / int(period))
    for group in _groups(root, "cpu", "cpu"):
        v1, period_v1 = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if v1 is not None and period_v1 and v1 > 0:
            quotas.append(v1 / period_v1)
    return min(quotas, default=None)


def _memory_v2(root: Path) -> Iterator[MemoryLimit]:
    for group in _groups(root, "memory", ""):
        limit, used = _number(group / "memory.max"), _number(group / "memory.current")
        if limit is not None and used is not None:
            reclaimable = _stat(group, "inactive_file")
            yield MemoryLimit(limit, max(used - reclaimable, 0))


def _memory_v1(root: Path) -> Iterator[MemoryLimit]:
    for group in _groups(root, "memory", "memory"):
        limit = _number(group / "memory.limit_in_bytes")
        used = _number(group / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            reclaimable = _stat(group, "total_inactive_file")
            yield MemoryLimit(limit, max(used - reclaimable, 0))


def _groups(root: Path, controller: str, hierarchy: str) -> Iterator[Path]:
    """Folders from this process's group up to the top.

    `hierarchy` is the folder of a version 1 controller, empty for version 2. Inside a container the
    group's own path may not be visible, then only the top is.
    """
    top = root / "sys/fs/cgroup" / hierarchy
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if names.split(",") == [""] if not hierarchy else controller in names.split(","):
            parts = [part for part in path.split("/") if part not in ("", "..")]
            yield from (top.joinpath(*parts[:depth]) for depth in range(len(parts), 0, -1))
    yield top


def _stat(group: Path, key: str) -> int:
    for line in (_text(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name == key and value.isdigit():
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
