"""Surface *ops*: faster versions of the named operations that `pegboard.nn` calls.

The core has a plain torch version of every op (`pegboard.nn.ops`), which is the oracle in tests. A
plugin offers further versions with conditions; at warm-up the table picks, for each op, the
version of highest priority whose conditions hold, and never changes its choice afterwards.
"""

from __future__ import annotations

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref

__all__ = ["OpVersion"]


@attrs.frozen
class OpVersion:
    """One implementation of one op. `function` has the signature documented at the op in
    `pegboard.nn.ops`."""

    name: str
    """Unique, by custom ``"<plugin>.<op>"``."""
    op: str
    function: LazyRef = attrs.field(converter=lazy_ref)
    platforms: tuple[str, ...] = ()
    """Platform names; empty for any."""
    dtypes: tuple[str, ...] = ()
    """Compute dtypes by torch name; empty for any."""
    batch_invariant: bool = False
    """A row's result has the same bits whatever other rows are there."""
    priority: int = 0

    def claims(self) -> tuple[str, ...]:
        return ()
