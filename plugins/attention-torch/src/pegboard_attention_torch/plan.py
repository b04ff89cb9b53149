"""Cutting a step into calls of torch's attention: which rows go together, where their keys lie.

Three forms, by what was measured on CPUs:

* Decode rows of short requests are *packed*: their keys are gathered side by side, padded to the
  longest of the pack and masked. One call for many rows beats a call per row as long as what is
  gathered stays in the second-level cache.
* Other decode rows run alone, on a view of the cache if their blocks follow one another, else on a
  gathered copy. A call per row over much data costs less than padding.
* Rows with several query tokens run alone, in tiles of queries, so that neither the mask nor the
  scores grow with the square of the context and keys behind the tile are not visited.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from pegboard.api.attention import AttentionContext, AttentionStep

__all__ = ["TILE", "Pack", "Row", "StepMetadata", "plan_step"]

TILE = 64
"""Query tokens per call for rows with several."""
PACK_TOKENS = 256
"""Requests with at most so many tokens are packed."""
PACK_BYTES = 768 * 1024
"""Most bytes of keys that a pack gathers."""


@attrs.frozen(eq=False)
class Row:
    """One request on its own."""

    first: int
    """Its first query token in the step."""
    count: int
    """Query tokens, the last of the request's `length` tokens."""
    length: int
    start: int | None
    """Token place in the cache from which its keys follow one another, if they do."""
    blocks: torch.Tensor | None
    """int64: its blocks, if they do not."""


@attrs.frozen(eq=False)
class Pack:
    """Several decode rows in one call."""

    queries: torch.Tensor
    """int64 [rows]: query token of each row."""
    places: torch.Tensor
    """int64 [rows * length]: token places of the keys; the rest of a row repeats its own last one,
    so that nothing of another request or of unused storage is ever read."""
    mask: torch.Tensor | None
    """[rows, 1, 1, length] in the dtype of the queries, None if all rows are of one length."""
    length: int


@attrs.frozen(eq=False)
class StepMetadata:
    """What `plan` hands to every layer."""

    slots: torch.Tensor
    rows: tuple[Row, ...]
    packs: tuple[Pack, ...]
    band: torch.Tensor | None
    """[TILE, deepest + TILE]: row i is open up to column ``deepest + i``. The mask of a tile that
    starts at position p is columns ``deepest - p`` onwards: one tensor serves every tile of the
    step."""
    deepest: int
    """Highest position at which a tile starts."""
    place: int | None
    """Token place of the step's first key, if all of them follow one another."""

    def mask(self, band: torch.Tensor, position: int, count: int) -> torch.Tensor:
        """``[count, position + count]``: what queries from `position` on may see; a view of
        `band`."""
        shift = self.deepest - position
        return band[:count, shift : shift + position + count]


def plan_step(step: AttentionStep, ctx: AttentionContext) -> StepMetadata:
    """Metadata of one step."""
    table = step.block_table.cpu().numpy()
    firsts = np.concatenate(([0], np.cumsum(step.query_lens)))
    packed, alone = _divide(step, ctx)
    rows = tuple(
        _row(table[r], int(firsts[r]), step.query_lens[r], step.kv_lens[r], ctx) for r in alone
    )
    packs = tuple(_pack(members, table, firsts, step.kv_lens, ctx) for members in packed)
    deepest = max((_last_tile(row) for row in rows if row.count > 1), default=None)
    band = None if deepest is None else _band(deepest, ctx)
    return StepMetadata(step.slots, rows, packs, band, deepest or 0, _place(rows, packs))


def _divide(step: AttentionStep, ctx: AttentionContext) -> tuple[list[list[int]], list[int]]:
    """Rows by pack, longest first within each, and rows on their own."""
    spec = ctx.group.spec
    token_bytes = spec.kv_heads * spec.head_size * torch.finfo(ctx.dtype).bits // 8
    budget = max(PACK_BYTES // token_bytes, 1)
    live = [r for r, count in enumerate(step.query_lens) if count]
    short = [r for r in live if step.query_lens[r] == 1 and step.kv_lens[r] <= PACK_TOKENS]
    short.sort(key=lambda r: -step.kv_lens[r])
    packs: list[list[int]] = []
    for r in short:
        longest = step.kv_lens[packs[-1][0]] if packs else 0
        if packs and longest * (len(packs[-1]) + 1) <= budget:
            packs[-1].append(r)
        else:
            packs.append([r])
    shared = [members for members in packs if len(members) > 1]
    in_pack = {r for members in shared for r in members}
    return shared, [r for r in live if r not in in_pack]


def _row(table: np.ndarray, first: int, count: int, length: int, ctx: AttentionContext) -> Row:
    size = ctx.group.block_size
    blocks = table[: -(-length // size)].astype(np.int64)
    if np.all(np.diff(blocks) == 1):
        return Row(first, count, length, int(blocks[0]) * size, None)
    return Row(first, count, length, None, torch.from_numpy(blocks).to(ctx.device))


def _pack(
    members: list[int],
    table: np.ndarray,
    firsts: np.ndarray,
    kv_lens: Sequence[int],
    ctx: AttentionContext,
) -> Pack:
    size = ctx.group.block_size
    rows = np.asarray(members)
    lengths = np.asarray([kv_lens[r] for r in members], dtype=np.int64)
    longest = int(lengths.max())
    tokens = np.minimum(np.arange(longest), lengths[:, None] - 1)
    places = table[rows[:, None], tokens // size].astype(np.int64) * size + tokens % size
    mask = None
    if int(lengths.min()) < longest:
        closed = torch.from_numpy(np.arange(longest) >= lengths[:, None]).to(ctx.device)
        mask = torch.zeros(closed.shape, dtype=ctx.dtype, device=ctx.device)
        mask = mask.masked_fill_(closed, float("-inf"))[:, None, None]
    return Pack(
        torch.from_numpy(firsts[rows].astype(np.int64)).to(ctx.device),
        torch.from_numpy(places.reshape(-1)).to(ctx.device),
        mask,
        longest,
    )


def _place(rows: tuple[Row, ...], packs: tuple[Pack, ...]) -> int | None:
    """Where a step of one row writes, if its blocks follow one another."""
    if len(rows) != 1 or packs or rows[0].start is None:
        return None
    return rows[0].start + rows[0].length - rows[0].count


def _last_tile(row: Row) -> int:
    """Position at which the last tile of `row` starts."""
    return row.length - row.count + (row.count - 1) // TILE * TILE


def _band(deepest: int, ctx: AttentionContext) -> torch.Tensor:
    closed = torch.full((TILE, deepest + TILE), float("-inf"), dtype=ctx.dtype, device=ctx.device)
    return closed.triu_(deepest + 1)
