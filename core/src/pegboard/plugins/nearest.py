"""Spelling hints for error messages."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word most like `word`, or None; `cutoff` is from 0, anything, to 1, equal.

    Small letters and capitals count as the same.
    """
    from difflib import get_close_matches  # only errors need it, and start-up must be quick

    spelt = {one.casefold(): one for one in sorted(known, reverse=True)}
    matches = get_close_matches(word.casefold(), sorted(spelt), n=1, cutoff=cutoff)
    return spelt[matches[0]] if matches else None
