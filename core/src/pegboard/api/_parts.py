"""Names that a contract file exports and its parts define, imported when they are first asked for.

At start-up a plugin needs the descriptors of its surfaces; what a running engine needs beside them
stands in the parts.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection
from typing import Any

__all__ = ["late_exports"]


def late_exports(module: str, public: Collection[str], *parts: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a contract file that exports names of these files of `pegboard.api`.

    What is found is not kept in the module: whatever stands there under such a name is a patch.
    """

    def find(name: str) -> Any:
        if name in public:
            for part in parts:
                home = importlib.import_module(f"pegboard.api.{part}")
                if name in home.__all__:
                    return getattr(home, name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return find
