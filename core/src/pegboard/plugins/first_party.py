"""The generated list of first-party distributions: what each would provide if it were installed.

The file is data for error messages and for the allowlist entry ``@first-party``. The core decides nothing else by it:
a first-party plugin comes through the same door as any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

__all__ = ["FirstParty", "read_first_party"]


@attrs.frozen
class FirstParty:
    """One distribution of the list."""

    distribution: str
    group: str
    id: str
    claims: Mapping[str, tuple[str, ...]]
    """Per surface, the names and claims that its plugin registers."""

    def offers(self, surface: str, key: str | None) -> bool:
        """Whether it provides `key`, or for None anything, in `surface`."""
        offered = self.claims.get(surface, ())
        return bool(offered) if key is None else key in offered


def read_first_party(path: Path | None = None) -> tuple[FirstParty, ...]:
    """Read the list, by distribution name; empty where the file is absent (a source tree before it is generated)."""
    path = path or Path(__file__).with_name("first_party.json")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return ()
    return tuple(_entry(name, content[name]) for name in sorted(content))


def _entry(name: str, fields: Mapping[str, Any]) -> FirstParty:
    claims = {surface: tuple(keys) for surface, keys in fields["claims"].items()}
    return FirstParty(name, fields["group"], fields["name"], claims)
