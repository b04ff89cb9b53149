"""Which stored tensor goes where in a model. Part of `pegboard.api.model`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs

__all__ = ["RowOrder", "Skip", "WeightMap", "WeightRule"]


class RowOrder(Protocol):
    """A permutation of a weight's rows, as data."""

    def index(self, rows: int) -> Sequence[int]:
        """``result[i]`` is the stored row that becomes row i."""
        ...


@attrs.frozen
class WeightRule:
    """Stored tensors ``<source>.<suffix>`` fill part `part` of module `target`.

    ``{i}`` stands for a layer number in both names, ``{e}`` in the source for the number of an
    expert. Suffixes (``weight``, ``bias``, scales) are those that the module and its quantisation
    method declare.
    """

    source: str
    target: str
    part: int = 0
    row_order: RowOrder | None = None
    offset: float = 0.0
    """Added to every element, in the dtype that the module declares: for norms whose weights are
    stored as their distance from 1."""
    experts: int = 0
    """How many experts ``{e}`` counts: each has a tensor of its own, which goes to its place in a
    stack (`ParamSpec.stacked`). 0: the source has no ``{e}``."""


@attrs.frozen
class Skip:
    """Stored tensors whose name matches `pattern` (shell style) are not loaded, for this reason."""

    pattern: str
    reason: str


@attrs.frozen
class WeightMap:
    """How one kind of checkpoint names the parts of a model. Every tensor of the file is in a rule
    or a skip."""

    rules: tuple[WeightRule, ...]
    skips: tuple[Skip, ...] = ()
