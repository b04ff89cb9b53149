"""Entry-point groups that look like ours and are not: what stands in them is never loaded."""

from __future__ import annotations

from collections.abc import Iterator

from pegboard.plugins.nearest import nearest
from pegboard.plugins.record import ADOPTERS, GROUPS

__all__ = ["looks_like_ours", "stray_notices"]

_PREFIXES = ("pegboard", "vllm")
_OTHERS = (
    "vllm.general_plugins",
    "vllm.io_processor_plugins",
    "vllm.logits_processors",
    "vllm.platform_plugins",
    "vllm.stat_logger_plugins",
)
"""Groups of another engine, in which its own plugins stand; they are no mistake."""


def looks_like_ours(text: str) -> bool:
    """Whether an ``entry_points.txt`` is worth a closer look."""
    return any(prefix in text.lower() for prefix in _PREFIXES)


def stray_notices(text: str) -> Iterator[str]:
    """A sentence for each group of an ``entry_points.txt`` that nobody reads, though it begins as
    ours do."""
    for group, names in _groups(text).items():
        if not group.lower().startswith(_PREFIXES) or group in (*GROUPS, ADOPTERS, *_OTHERS):
            continue
        near = nearest(group.lower(), (*GROUPS, ADOPTERS, *_OTHERS), cutoff=0.8)
        hint = f"did you mean {near!r}?" if near else f"groups are {', '.join(GROUPS)}"
        listed = f" ({', '.join(names)})" if names else ""
        what = f"the entry-point group {group!r}{listed}"
        yield f"nobody loads what is in {what}; {hint}"


def _groups(text: str) -> dict[str, list[str]]:
    """Names by group; a line that is no part of the format is another check's business."""
    groups: dict[str, list[str]] = {}
    names: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line[:1] == "[" and line[-1:] == "]":
            names = groups.setdefault(line[1:-1].strip(), [])
        elif "=" in line and line[0] not in "#;":
            names.append(line.partition("=")[0].strip())
    return groups
