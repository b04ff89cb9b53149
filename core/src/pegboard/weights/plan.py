"""What will be read for each layer, decided and checked before the first byte is read.

`plan_load` matches every parameter that the model wants with a stored tensor and every stored
tensor with a use or a reason to skip it. All faults of a checkpoint are collected into one error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from pegboard.api.checkpoint import PLAIN_TYPES, StoredTensor
from pegboard.api.model import Parallel
from pegboard.api.quant import ParamSpec
from pegboard.errors import CheckpointError, ConfigError, PluginError
from pegboard.weights.header import STORED_DTYPES
from pegboard.weights.resolve import Found, ResolvedWeights

if TYPE_CHECKING:
    import torch

    from pegboard.nn import Weighted

__all__ = [
    "LeafPlan",
    "LoadPlan",
    "Piece",
    "Shard",
    "of_experts",
    "plan_leaves",
    "plan_load",
    "shard_of",
]

FLOATS = ("float64", "float32", "float16", "bfloat16")
_NAMED = 5


@attrs.frozen
class Shard:
    """Elements ``start:stop`` of one axis."""

    axis: int
    start: int
    stop: int


@attrs.frozen
class Piece:
    """One parameter of one part of a layer."""

    prefix: str
    part: int
    spec: ParamSpec
    shard: Shard | None = None
    found: Found | None = None
    """None while only random weights are wanted."""
    expert: int | None = None
    """Its place in the stack of experts that the layer declared; `spec` and `shard` are those of
    one expert then. None: all of a parameter."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of this rank's shard."""
        shape = list(self.spec.shape)
        if self.shard is not None:
            shape[self.shard.axis] = self.shard.stop - self.shard.start
        return tuple(shape)

    @property
    def rows(self) -> tuple[int, int]:
        """Rows to deliver, as ``(start, stop)`` of the outermost axis."""
        if self.shard is not None and self.shard.axis == 0:
            return self.shard.start, self.shard.stop
        return 0, self.spec.shape[0] if self.spec.shape else 1


@attrs.frozen(eq=False)
class LeafPlan:
    """All pieces of one module with weights."""

    leaf: Weighted
    pieces: tuple[Piece, ...]


@attrs.frozen(eq=False)
class LoadPlan:
    """What will be read, in the order of the model's modules."""

    leaves: tuple[LeafPlan, ...]
    skipped: dict[str, str]
    """Stored tensors left out on purpose: reason by name."""

    @property
    def total_bytes(self) -> int:
        """Stored bytes that will be read, rows of other ranks not counted."""
        return sum(stored_bytes(piece) for leaf in self.leaves for piece in leaf.pieces)


def stored_bytes(piece: Piece) -> int:
    """Bytes of the file that a piece needs."""
    if piece.found is None:
        return 0
    rows = max(piece.spec.shape[0], 1) if piece.spec.shape else 1
    start, stop = piece.rows
    return piece.found.tensor.nbytes // rows * (stop - start)


def plan_leaves(model: torch.nn.Module, parallel: Parallel) -> tuple[LeafPlan, ...]:
    """What the model wants, shards decided, nothing looked up yet.

    Raises `PluginError` if the model has parameters that nobody could fill.
    """
    from pegboard.nn import Weighted

    leaves = []
    seen: set[str] = set()
    for name, module in model.named_modules():
        if not isinstance(module, Weighted):
            _refuse_parameters(name, module)
            continue
        wanted = module.wanted()
        if wanted and module.prefix in seen:
            raise PluginError(f"two modules of the model have the weight prefix {module.prefix!r}")
        seen.add(module.prefix)
        leaves.append(LeafPlan(module, tuple(_pieces(module.prefix, wanted, parallel))))
    return tuple(leaves)


def _refuse_parameters(name: str, module: torch.nn.Module) -> None:
    for parameter, _ in module.named_parameters(recurse=False):
        raise PluginError(
            f"module {name or type(module).__name__!r} owns parameter {parameter!r} but is no "
            f"Weighted; "
            "the loader could not fill it"
        )


def _pieces(
    prefix: str, wanted: Sequence[tuple[int, ParamSpec]], parallel: Parallel
) -> Iterator[Piece]:
    for part, spec in wanted:
        yield Piece(prefix, part, spec, shard_of(prefix, spec, parallel))


def shard_of(prefix: str, spec: ParamSpec, parallel: Parallel) -> Shard | None:
    """This rank's share of a parameter, or None if every rank holds all of it.

    Raises `ConfigError` if the axis does not divide into whole granules for every rank.
    """
    if spec.shard_axis is None or parallel.world == 1:
        return None
    try:
        return Shard(spec.shard_axis, *spec.span(parallel.rank, parallel.world))
    except ConfigError as error:
        raise ConfigError(f"{prefix}.{spec.name}: {error}") from None


def plan_load(
    model: torch.nn.Module, resolved: ResolvedWeights, parallel: Parallel | None = None
) -> LoadPlan:
    """Find a stored tensor for every wanted parameter and account for every stored tensor.

    Raises `CheckpointError` naming what is missing, what has the wrong shape or type and what is
    left over: the first few of each, and how many there are.
    """
    missing: list[str] = []
    wrong: list[str] = []
    used: set[str] = set()
    leaves = []
    for leaf in plan_leaves(model, parallel or Parallel()):
        whole = (of_experts(piece, resolved) for piece in leaf.pieces)
        pieces = [_look_up(piece, resolved, missing, wrong) for some in whole for piece in some]
        used.update(piece.found.tensor.name for piece in pieces if piece.found is not None)
        leaves.append(LeafPlan(leaf.leaf, tuple(pieces)))
    unexpected = resolved.unexpected(used)
    faults = [
        *_listing("missing", missing),
        *_listing("not as the model wants them", wrong),
        *_listing("not expected", unexpected),
    ]
    if faults:
        raise CheckpointError(f"{resolved.path}: " + "; ".join(faults))
    return LoadPlan(tuple(leaves), resolved.skipped(used))


def of_experts(piece: Piece, resolved: ResolvedWeights | None = None) -> Iterator[Piece]:
    """A stack as pieces of one expert each, where that is how `resolved` has it (None: it is); any
    other piece as it is."""
    name, part = piece.spec.name, piece.part
    whole = resolved is not None and (
        resolved.find(piece.prefix, part, name) is not None
        or not resolved.experts(piece.prefix, part)
    )
    if not piece.spec.stacked or whole:
        yield piece
        return
    axis, shard = piece.spec.shard_axis, piece.shard
    assert axis != 0, "experts are not shared out along the axis that counts them"
    spec = attrs.evolve(
        piece.spec,
        shape=piece.spec.shape[1:],
        shard_axis=None if axis is None else axis - 1,
        stacked=False,
    )
    part_of = None if shard is None else attrs.evolve(shard, axis=shard.axis - 1)
    for expert in range(piece.spec.shape[0]):
        yield attrs.evolve(piece, spec=spec, shard=part_of, expert=expert)


def _look_up(
    piece: Piece, resolved: ResolvedWeights, missing: list[str], wrong: list[str]
) -> Piece:
    """`piece` with its stored tensor; faults are added to the lists."""
    place = (piece.prefix, piece.part, piece.spec.name, piece.expert)
    found = resolved.find(*place)
    if found is None:
        names = resolved.expected_names(*place)
        stored = (
            " or ".join(map(repr, names)) or "a tensor that the family's weight map does not name"
        )
        missing.append(f"{stored} (for {piece.prefix}.{piece.spec.name})")
        return piece
    fault = _mismatch(piece.spec, found.tensor)
    if fault is not None:
        wrong.append(f"{found.tensor.name!r} {fault}")
    return attrs.evolve(piece, found=found)


def _mismatch(spec: ParamSpec, tensor: StoredTensor) -> str | None:
    """Why a stored tensor cannot fill a parameter, or None."""
    shape, dtype = delivered(tensor)
    if shape != tuple(spec.shape):
        return f"has shape {list(shape)}, wanted is {list(spec.shape)}"
    convertible = tensor.stored_type in PLAIN_TYPES and spec.dtype in FLOATS
    if dtype != spec.dtype and not convertible:
        return f"is stored as {tensor.stored_type}, which is not converted to {spec.dtype}"
    return None


def delivered(tensor: StoredTensor) -> tuple[tuple[int, ...], str]:
    """Shape and torch dtype name of what reading the whole tensor gives; bytes for a block type."""
    if tensor.stored_type in STORED_DTYPES:
        return tuple(tensor.shape), STORED_DTYPES[tensor.stored_type][0]
    rows = tensor.shape[0] if tensor.shape else 1
    return (rows, tensor.nbytes // max(rows, 1)), "uint8"


def _listing(what: str, items: Sequence[str]) -> list[str]:
    if not items:
        return []
    more = f" and {len(items) - _NAMED} more" if len(items) > _NAMED else ""
    noun = "tensor" if len(items) == 1 else "tensors"
    return [f"{len(items)} {noun} {what}: {', '.join(items[:_NAMED])}{more}"]
