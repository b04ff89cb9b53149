"""The generated list of first-party distributions: what each would provide if it were installed.

The file is data for error messages, for the allowlist entry ``@first-party``, and for the question
which of two plugins that want the same is rolled back. The core decides nothing else by it: a
first-party plugin comes through the same door as any other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["FirstParty", "read_first_party"]


class FirstParty(NamedTuple):
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


def read_first_party(path: str | None = None) -> tuple[FirstParty, ...]:
    """Read the list, by distribution name.

    Empty where the file is absent (a source tree before it is generated).
    """
    import json  # most runs never read the list, and start-up must be quick

    path = path or os.path.join(os.path.dirname(__file__), "first_party.json")
    try:
        with open(path, encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
    except FileNotFoundError:
        return ()
    return tuple(_entry(name, content[name]) for name in sorted(content))


def _entry(name: str, fields: Mapping[str, Any]) -> FirstParty:
    claims = {surface: tuple(keys) for surface, keys in fields["claims"].items()}
    return FirstParty(name, fields["group"], fields["name"], claims)
