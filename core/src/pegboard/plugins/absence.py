"""Why something is not on the board, in words for the person who can put it there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType

from pegboard.plugins.first_party import FirstParty
from pegboard.plugins.nearest import nearest
from pegboard.plugins.record import GROUP_OF_SURFACE, PluginRecord

__all__ = ["explain_absence", "explain_chance", "explain_missing", "surface_words"]

_WORDS = MappingProxyType(
    {
        "alias": "model alias",
        "attention": "attention backend",
        "checkpoint": "checkpoint source",
        "connector": "KV connector",
        "endpoint": "HTTP endpoint",
        "events": "KV event publisher",
        "logits": "logits processor",
        "model": "model family",
        "ops": "op version",
        "quant": "quantisation format",
        "stat_logger": "stat logger",
        "tokenizer": "tokeniser",
    }
)

_IN_PLACE = MappingProxyType({"model": ("alias",)})
"""By surface, others whose things serve in place of one of it."""


def surface_words(surface: str) -> str:
    """What one thing of this surface is called in messages."""
    return _WORDS.get(surface, surface)


def explain_absence(
    surface: str,
    key: str | None,
    *,
    records: Sequence[PluginRecord],
    first_party: Sequence[FirstParty],
    loaded: Sequence[str],
) -> str:
    """Sentences that say what would provide `key` and why it is not there.

    `key` None stands for anything of the surface. `loaded` are the keys that the surface has; they
    are listed where nothing better is known.
    """
    told = explain_chance(surface, key, records=records, first_party=first_party)
    return told or _nothing_known(key, loaded)


def explain_chance(
    surface: str,
    key: str | None,
    *,
    records: Sequence[PluginRecord],
    first_party: Sequence[FirstParty],
) -> str:
    """Sentences on plugins that would, or might, provide `key` and did not load; empty if there are
    none."""
    offering = [f for f in first_party if f.offers(surface, key)]
    known = {f.distribution for f in first_party if f.claims}
    offered_by = {f.distribution for f in offering}
    return " ".join(
        (
            *_installed(surface, records, known, offered_by, strangers=not offered_by),
            *_not_installed(offering, records),
        )
    )


def explain_missing(
    surface: str, *, records: Iterable[PluginRecord], first_party: Iterable[FirstParty]
) -> str:
    """Sentences for installed plugins that would bring more of the surface but did not load; empty
    if there are none. For errors where what did load does not serve."""
    listed = [f for f in first_party if f.claims]
    offering = {f.distribution for f in listed if f.offers(surface, None)}
    known = {f.distribution for f in listed}
    return " ".join(_installed(surface, records, known, offering, strangers=True))


def _installed(
    surface: str,
    records: Iterable[PluginRecord],
    known: set[str],
    offered_by: set[str],
    *,
    strangers: bool,
) -> Iterator[str]:
    """Installed plugins that did not load: listed ones that would help, and perhaps strangers."""
    for record in records:
        certain = record.distribution in offered_by
        unlisted = (strangers or record.state == "failed") and record.distribution not in known
        stranger = unlisted and _may_offer(record, surface)
        if record.state == "ready" or not (certain or stranger):
            continue
        verb = "provides it and" if certain else "might provide it; it"
        who = f"{record.distribution} {record.version}"
        yield f"{who} {verb} is installed, but {_why(record)}."


def _may_offer(record: PluginRecord, surface: str) -> bool:
    if record.surfaces:
        return not {surface, *_IN_PLACE.get(surface, ())}.isdisjoint(record.surfaces)
    return record.group == GROUP_OF_SURFACE.get(surface, "pegboard.plugins")


def _why(record: PluginRecord) -> str:
    if record.state == "blocked":
        return record.reason
    return f"it is {record.state}: {record.reason.rstrip('.')}"


def _not_installed(
    offering: Iterable[FirstParty], records: Iterable[PluginRecord]
) -> Iterator[str]:
    installed = {record.distribution for record in records}
    missing = [f.distribution for f in offering if f.distribution not in installed]
    if missing:
        one = len(missing) == 1
        verb = "provides it and is" if one else "provide it and are"
        which = missing[0] if one else "the one that suits this machine"
        yield f"{' or '.join(missing)} {verb} not installed: pip install {which}."


def _nothing_known(key: str | None, loaded: Sequence[str]) -> str:
    sentence = "No installed plugin and no distribution of this release is known to provide it."
    if not loaded:
        return sentence
    near = nearest(key or "", loaded)
    hint = f" (nearest: {near!r})" if near else ""
    return f"{sentence} Loaded: {', '.join(loaded)}{hint}."
