"""What is said of a plugin that cannot be loaded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from pegboard.errors import PegboardError, PluginError
from pegboard.plugins.allowlist import VARIABLE
from pegboard.plugins.record import Candidate, PluginRecord

__all__ = ["check_value", "name_clash", "notice_of", "reason_of", "used_twice"]


def used_twice(candidates: Iterable[Candidate]) -> dict[str, list[Candidate]]:
    """Entry-point names that lead to more than one plugin: an id must name one thing."""
    by_id: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_id[candidate.id].append(candidate)
    return {name: users for name, users in by_id.items() if len(users) > 1}


def name_clash(users: Sequence[Candidate]) -> str:
    """For an id that several plugins have."""
    return f"the plugin name {users[0].id!r} is used by {' and '.join(map(str, users))}"


def check_value(candidate: Candidate) -> None:
    """Raise `PluginError` unless the entry point names a module."""
    if not all(part.isidentifier() for part in candidate.value.split(".")):
        raise PluginError(f"the entry point must name a module, it is {candidate.value!r}")


def reason_of(error: BaseException) -> str:
    """One line; for errors that are not ours, with the place where they were raised."""
    text = " ".join(_text(error).split())
    if isinstance(error, PegboardError):
        return text
    import traceback  # only failures need it, and start-up must be quick

    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {text}{place}" if text else f"{type(error).__name__}{place}"


def _text(error: BaseException) -> str:
    """What it says; empty where its own code fails at that."""
    try:
        return str(error)
    except Exception:
        return ""


def notice_of(record: PluginRecord, setting: Callable[[], str]) -> str:
    """For the operator: which plugin did not load, why, and what to do about it; `setting` makes
    the text that leaves it out."""
    told = record.state == "incompatible" or VARIABLE in record.reason
    remedy = "" if told else f"; mend or upgrade it, or leave it out with {setting()}"
    return f"{record} is {record.state}: {record.reason}{remedy}"
