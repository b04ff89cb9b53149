"""Cutting a step into calls of torch's attention: which rows go together, where their keys lie.

Three forms, by what was measured on CPUs:

* Decode rows that see few tokens are *packed*: their keys are gathered side by side, padded to the
  longest of the pack and masked. One call for many rows beats a call per row as long as what is
  gathered stays in the second-level cache.
* Other decode rows run alone, on a view of the cache if their blocks follow one another, else on a
  gathered copy. A call per row over much data costs less than padding.
* Rows with several query tokens run alone, in tiles of queries, so that neither the mask nor the
  scores grow with the square of the context, and keys that no query of a tile sees are not visited.

Of a window or a chunk only what a row sees is read: blocks before it may belong to others by now.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np
import torch

from pegboard.api.attention import AttentionContext, AttentionStep
from pegboard.api.kv import ChunkedLocalSpec, KVSpec, SlidingWindowSpec

__all__ = ["TILE", "Pack", "Row", "StepMetadata", "Tile", "plan_step"]

TILE = 64
"""Query tokens per call for rows with several."""
PACK_TOKENS = 256
"""Rows that see at most so many tokens are packed."""
PACK_BYTES = 768 * 1024
"""Most bytes of keys that a pack gathers."""


@attrs.frozen
class Tile:
    """Queries of one row that are computed together. Tokens count from the start of the request."""

    first: int
    """Its first query token in the step."""
    position: int
    """The token that this query is of."""
    count: int
    """Query tokens."""
    begin: int
    """First token that some query sees; the last one is that of the last query."""

    @property
    def depth(self) -> int:
        """Tokens before the first query."""
        return self.position - self.begin


@attrs.frozen(eq=False)
class Row:
    """One request on its own."""

    first: int
    """Its first query token in the step."""
    count: int
    """Query tokens, the last of the request's `length` tokens."""
    begin: int
    """First token that some query sees."""
    length: int
    tiles: tuple[Tile, ...]
    """None of a row with one query."""
    start: int | None
    """Token place in the cache from which its keys, from token `begin` on, follow one another, if
    they do."""
    blocks: torch.Tensor | None
    """int64: the blocks of tokens `begin` and on, if they do not."""


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
    """[TILE, deepest + TILE]: row i is open up to column ``deepest + i``, in a window from column
    ``deepest + i - window + 1`` on. The mask of a tile with `depth` tokens before its first query
    is columns ``deepest - depth`` onwards: one tensor serves every tile of the step."""
    deepest: int
    """Largest depth of a tile."""
    place: int | None
    """Token place of the step's first key, if all of them follow one another."""

    def mask(self, band: torch.Tensor, tile: Tile) -> torch.Tensor:
        """``[count, depth + count]``: what the queries of a tile may see; a view of `band`."""
        shift = self.deepest - tile.depth
        return band[: tile.count, shift : shift + tile.depth + tile.count]


def first_seen(spec: KVSpec, position: int) -> int:
    """The first token that the query of token `position` sees."""
    if isinstance(spec, SlidingWindowSpec):
        return max(position - spec.window + 1, 0)
    if isinstance(spec, ChunkedLocalSpec):
        return position // spec.chunk * spec.chunk
    return 0


def plan_step(step: AttentionStep, ctx: AttentionContext) -> StepMetadata:
    """Metadata of one step."""
    return _Planner(step, ctx).plan()


class _Planner:
    """Plans one step."""

    def __init__(self, step: AttentionStep, ctx: AttentionContext) -> None:
        self._step = step
        self._ctx = ctx
        self._spec = ctx.group.spec
        self._size = ctx.group.block_size
        self._table = step.block_table.cpu().numpy()
        self._firsts = np.concatenate(([0], np.cumsum(step.query_lens)))
        lens = zip(step.query_lens, step.kv_lens, strict=True)
        self._begins = [first_seen(self._spec, length - count) for count, length in lens]

    def plan(self) -> StepMetadata:
        packed, alone = self._divide()
        rows = tuple(self._row(r) for r in alone)
        packs = tuple(self._pack(members) for members in packed)
        deepest = max((tile.depth for row in rows for tile in row.tiles), default=None)
        band = None if deepest is None else self._band(deepest)
        place = _place(rows, packs)
        return StepMetadata(self._step.slots, rows, packs, band, deepest or 0, place)

    def _seen(self, r: int) -> int:
        """Tokens that row `r` reads."""
        return self._step.kv_lens[r] - self._begins[r]

    def _divide(self) -> tuple[list[list[int]], list[int]]:
        """Rows by pack, longest first within each, and rows on their own."""
        counts = self._step.query_lens
        token_bytes = self._spec.kv_heads * self._spec.head_size
        token_bytes *= torch.finfo(self._ctx.dtype).bits // 8
        budget = max(PACK_BYTES // token_bytes, 1)
        live = [r for r, count in enumerate(counts) if count]
        short = [r for r in live if counts[r] == 1 and self._seen(r) <= PACK_TOKENS]
        short.sort(key=lambda r: -self._seen(r))
        packs: list[list[int]] = []
        for r in short:
            longest = self._seen(packs[-1][0]) if packs else 0
            if packs and longest * (len(packs[-1]) + 1) <= budget:
                packs[-1].append(r)
            else:
                packs.append([r])
        shared = [members for members in packs if len(members) > 1]
        in_pack = {r for members in shared for r in members}
        return shared, [r for r in live if r not in in_pack]

    def _row(self, r: int) -> Row:
        first, count = int(self._firsts[r]), self._step.query_lens[r]
        begin, length = self._begins[r], self._step.kv_lens[r]
        tiles = tuple(self._tiles(first, length - count, length)) if count > 1 else ()
        blocks = self._table[r, begin // self._size : -(-length // self._size)].astype(np.int64)
        if np.all(np.diff(blocks) == 1):
            start = int(blocks[0]) * self._size + begin % self._size
            return Row(first, count, begin, length, tiles, start, None)
        gathered = torch.from_numpy(blocks).to(self._ctx.device)
        return Row(first, count, begin, length, tiles, None, gathered)

    def _tiles(self, first: int, position: int, length: int) -> Iterator[Tile]:
        """Tiles of the queries of tokens `position` to `length`; none crosses the end of a chunk,
        so that no query sees anything before its own chunk."""
        while position < length:
            begin = first_seen(self._spec, position)
            count = min(TILE, length - position)
            if isinstance(self._spec, ChunkedLocalSpec):
                count = min(count, begin + self._spec.chunk - position)
            yield Tile(first, position, count, begin)
            first, position = first + count, position + count

    def _pack(self, members: list[int]) -> Pack:
        rows = np.asarray(members)
        begins = np.asarray([self._begins[r] for r in members], dtype=np.int64)
        lengths = np.asarray([self._seen(r) for r in members], dtype=np.int64)
        longest = int(lengths.max())
        tokens = begins[:, None] + np.minimum(np.arange(longest), lengths[:, None] - 1)
        blocks = self._table[rows[:, None], tokens // self._size].astype(np.int64)
        places = blocks * self._size + tokens % self._size
        mask = None
        if int(lengths.min()) < longest:
            closed = torch.from_numpy(np.arange(longest) >= lengths[:, None]).to(self._ctx.device)
            mask = torch.zeros(closed.shape, dtype=self._ctx.dtype, device=self._ctx.device)
            mask = mask.masked_fill_(closed, float("-inf"))[:, None, None]
        return Pack(
            torch.from_numpy(self._firsts[rows].astype(np.int64)).to(self._ctx.device),
            torch.from_numpy(places.reshape(-1)).to(self._ctx.device),
            mask,
            longest,
        )

    def _band(self, deepest: int) -> torch.Tensor:
        def closed() -> torch.Tensor:
            shape = (TILE, deepest + TILE)
            return torch.full(shape, float("-inf"), dtype=self._ctx.dtype, device=self._ctx.device)

        band = closed().triu_(deepest + 1)
        if isinstance(self._spec, SlidingWindowSpec):
            band += closed().tril_(deepest - self._spec.window)
        return band


def _place(rows: tuple[Row, ...], packs: tuple[Pack, ...]) -> int | None:
    """Where a step of one row writes, if its blocks follow one another."""
    if len(rows) != 1 or packs or rows[0].start is None:
        return None
    row = rows[0]
    assert row.start is not None
    return row.start + (row.length - row.count) - row.begin
