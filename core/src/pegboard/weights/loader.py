"""Filling a model's layers from a checkpoint, one layer at a time.

A tensor goes from the file to its place on the device in tiles of rows; conversion happens on the
way. On the host stand at most one tile and, where the device is the host, the layer that is being
filled. Where a layer has a place for a tensor (`Weighted.place`), it goes there and nowhere else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby

import torch

from pegboard.api.model import Parallel
from pegboard.errors import CheckpointError, PluginError
from pegboard.hostmemory import release_free_memory
from pegboard.weights.plan import (
    FLOATS,
    LeafPlan,
    Piece,
    delivered,
    of_experts,
    plan_leaves,
    plan_load,
    stored_bytes,
)
from pegboard.weights.random import random_weight
from pegboard.weights.resolve import Found, ResolvedWeights

__all__ = ["Progress", "fill_dummy", "load_weights"]

Progress = Callable[[int, int], None]
"""``(bytes done, bytes in all)``; called after each layer, the last time with both equal."""

_Maker = Callable[[Piece, "torch.Tensor | None"], torch.Tensor]
"""Makes a piece's tensor: in the place that is given, which it gives back, or in fresh memory."""

_TILE_BYTES = 32 * 1024 * 1024
_RELEASE_BYTES = 2 * 1024 * 1024
"""What was read between two releases of freed memory: the C library would keep the host's copies
resident beside the weights."""


def load_weights(
    model: torch.nn.Module,
    resolved: ResolvedWeights,
    device: torch.device,
    progress: Progress | None = None,
    *,
    parallel: Parallel | None = None,
) -> dict[str, str]:
    """Fill every layer of `model`; returns the stored tensors that were skipped, with the reason.

    Everything is matched and checked first (`plan_load`), then read. Calling it again updates the
    weights in place. Plain types (F64, F32, F16, BF16) are converted to the dtype that the layer
    declares. Raises `CheckpointError` naming file and tensor.
    """
    plan = plan_load(model, resolved, parallel)
    total, done, released = plan.total_bytes, 0, 0
    for leaf in plan.leaves:
        if leaf.pieces:
            _fill(leaf, device, lambda piece, place: _read(piece, place, device))
        done += sum(map(stored_bytes, leaf.pieces))
        if done - released >= _RELEASE_BYTES or done == total > released:
            release_free_memory()
            released = done
        if progress is not None and leaf.pieces:
            progress(done, total)
    return plan.skipped


def fill_dummy(
    model: torch.nn.Module, device: torch.device, *, parallel: Parallel | None = None
) -> None:
    """Fill every layer with uniform random numbers within ±1e-3 (integers: zeros).

    A weight's values depend on its name only, not on the device, the order of layers or the number
    of ranks.
    """
    for leaf in plan_leaves(model, parallel or Parallel()):
        pieces = tuple(one for piece in leaf.pieces for one in of_experts(piece))
        if pieces:
            plan = LeafPlan(leaf.leaf, pieces)
            _fill(plan, device, lambda piece, place: _random(piece, place, device))


def _fill(leaf: LeafPlan, device: torch.device, make: _Maker) -> None:
    """Make all tensors of a layer and hand them over, one per part and name, parts in order."""
    loaded: dict[str, list[torch.Tensor]] = defaultdict(list)
    for (part, name), group in groupby(sorted(leaf.pieces, key=_parameter), _parameter):
        place = leaf.leaf.place(part, name, device)
        loaded[name].append(_deliver(tuple(group), place, device, make))
    leaf.leaf.finalise(loaded)
    if not leaf.leaf.loaded():
        raise PluginError(f"{leaf.leaf.prefix}: not loaded after all its tensors were given")


def _parameter(piece: Piece) -> tuple[int, str]:
    return piece.part, piece.spec.name


def _deliver(
    pieces: Sequence[Piece], place: torch.Tensor | None, device: torch.device, make: _Maker
) -> torch.Tensor:
    """One parameter, from the one piece of it or from those of its experts."""
    first = pieces[0]
    stack = first.shape if first.expert is None else (len(pieces), *first.shape)
    dtype = getattr(torch, first.spec.dtype)
    if place is not None and (tuple(place.shape), place.dtype) != (stack, dtype):
        raise PluginError(
            f"{first.prefix}: the place for {first.spec.name!r} of part {first.part} is "
            f"{place.dtype} {list(place.shape)}, declared are {dtype} {list(stack)}"
        )
    if first.expert is None:
        return make(first, place)
    target = torch.empty(stack, dtype=dtype, device=device) if place is None else place
    for piece in pieces:
        make(piece, target[piece.expert])
    return target


def _read(piece: Piece, place: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """This rank's shard of one parameter, on the device, in the dtype it declares."""
    found = piece.found
    assert found is not None
    values = _stored(piece, found, place, device)
    if not found.offset:
        return values
    if not values.is_floating_point():
        raise PluginError(
            f"{piece.prefix}: the weight map adds {found.offset} to {found.tensor.name!r}, which "
            f"is delivered as {piece.spec.dtype}; only floating-point weights take an offset"
        )
    return values.add_(found.offset)


def _stored(
    piece: Piece, found: Found, place: torch.Tensor | None, device: torch.device
) -> torch.Tensor:
    """The shard as the checkpoint has it, in its place or in fresh memory."""
    same = delivered(found.tensor)[1] == piece.spec.dtype
    direct = place is None and device.type == "cpu" and same
    across = piece.shard is not None and piece.shard.axis > 0
    if direct and not across and found.row_order is None:
        return (
            _checked(found.tensor.read(*piece.rows), piece, piece.shape)
            if piece.shape
            else _scalar(piece)
        )
    target = place
    if target is None:
        dtype = getattr(torch, piece.spec.dtype)
        target = torch.empty(piece.shape, dtype=dtype, device=device)
    if not piece.shape:
        _copy(piece, _scalar(piece), target)
    elif found.row_order is not None:
        _copy(piece, _reordered(piece, found), target)
    else:
        _copy_tiles(piece, found, target)
    return target


def _scalar(piece: Piece) -> torch.Tensor:
    assert piece.found is not None
    return _checked(piece.found.tensor.read(), piece, ())


def _copy_tiles(piece: Piece, found: Found, target: torch.Tensor) -> None:
    """Read, convert and place a few rows at a time."""
    start, stop = piece.rows
    row_bytes = max(found.tensor.nbytes // max(piece.spec.shape[0], 1), 1)
    step = max(_TILE_BYTES // row_bytes, 1)
    for first in range(start, stop, step):
        last = min(first + step, stop)
        tile = found.tensor.read(first, last)
        _checked(tile, piece, (last - first, *piece.spec.shape[1:]))
        _copy(piece, tile, target[first - start : last - start])


def _reordered(piece: Piece, found: Found) -> torch.Tensor:
    """The wanted rows in the model's order; the stored tensor is read whole."""
    assert found.row_order is not None
    rows = piece.spec.shape[0]
    order = torch.tensor(list(found.row_order.index(rows)), dtype=torch.int64)
    if not torch.equal(order.sort().values, torch.arange(rows)):
        raise PluginError(
            f"{piece.prefix}: the row order of {found.tensor.name!r} is no permutation"
        )
    start, stop = piece.rows
    whole = _checked(found.tensor.read(), piece, tuple(piece.spec.shape))
    return whole.index_select(0, order[start:stop])


def _checked(tile: torch.Tensor, piece: Piece, shape: tuple[int, ...]) -> torch.Tensor:
    """`tile`, if it is what the source promised; a wrong shape would be broadcast in silence."""
    assert piece.found is not None
    dtype = delivered(piece.found.tensor)[1]
    if tuple(tile.shape) != shape or tile.dtype != getattr(torch, dtype):
        raise PluginError(
            f"{piece.found.tensor.name!r}: the checkpoint source gave {tile.dtype} "
            f"{list(tile.shape)} where {dtype} "
            f"{list(shape)} was due"
        )
    return tile


def _copy(piece: Piece, rows: torch.Tensor, target: torch.Tensor) -> None:
    """Convert `rows` into `target`, which has as many rows; a shard along a later axis is cut
    out."""
    assert piece.found is not None
    if piece.shard is not None and piece.shard.axis > 0:
        rows = rows.narrow(
            piece.shard.axis, piece.shard.start, piece.shard.stop - piece.shard.start
        )
    assert rows.shape == target.shape
    target.copy_(rows)
    narrowed = target.dtype == torch.float16 and rows.dtype != torch.float16
    if narrowed and not target.isfinite().all() and rows.isfinite().all():
        raise CheckpointError(
            f"{piece.found.tensor.file}: tensor {piece.found.tensor.name!r} has values beyond "
            f"float16; use "
            "dtype='bfloat16' or 'float32'"
        )


def _random(piece: Piece, place: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    dtype = getattr(torch, piece.spec.dtype)
    if piece.spec.dtype not in FLOATS:
        found = torch.empty(piece.shape, dtype=dtype, device=device) if place is None else place
        return found.zero_()
    name = f"{piece.prefix}.{piece.part}.{piece.spec.name}"
    name += "" if piece.expert is None else f".{piece.expert}"
    whole = random_weight(name, piece.spec.shape, dtype, device)
    if piece.shard is not None:
        whole = whole.narrow(
            piece.shard.axis, piece.shard.start, piece.shard.stop - piece.shard.start
        )
    if place is not None:
        return place.copy_(whole)
    return whole if piece.shard is None else whole.clone(memory_format=torch.contiguous_format)
