"""Random requests for an attention kernel, their paged storage, and attention by its definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import torch

from pegboard.api.attention import (
    AttentionContext,
    AttentionInputs,
    AttentionKernel,
    AttentionLayer,
    AttentionStep,
)
from pegboard.api.kv import (
    ChunkedLocalSpec,
    FullAttentionSpec,
    KVGroup,
    KVLayout,
    KVSpec,
    KVTensors,
    SlidingWindowSpec,
)

__all__ = ["AttentionCase", "KernelFactory", "Rows", "Setting"]

Rows = Sequence[tuple[int, int]]
"""Per row of a step: query tokens, and tokens known after the step; the queries are the last."""

KernelFactory = Callable[[AttentionContext], AttentionKernel]

SLOT = "0.self"
FP8 = torch.float8_e4m3fn
CANONICAL = ("kv", "block", "token", "head", "dim")
SPARE_BLOCKS = 2
"""Blocks that no request owns, beside the null block."""


@attrs.frozen
class Setting:
    """Shapes and dtypes of one layer; dtypes by torch name."""

    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    block_size: int = 16
    dtype: str = "float32"
    kv_dtype: str = "float32"
    device: str = "cpu"
    layout: int = 0
    """Which of the layouts that the kernel offers."""
    kind: str = "full"
    """``full``, ``sliding`` or ``chunked``."""
    span: int = 1
    """Tokens of a window or chunk."""
    soft_cap: float | None = None
    scales: tuple[float, float] | None = None
    """What keys and values in a cache of 8-bit floats are multiples of."""
    padding: int = 0
    """Elements of every page that belong to nobody; only for layouts with the block axis
    outermost."""

    def spec(self) -> KVSpec:
        """What the slot keeps."""
        sizes = (self.kv_heads, self.head_size, self.kv_dtype)
        if self.kind == "sliding":
            return SlidingWindowSpec(*sizes, window=self.span)
        if self.kind == "chunked":
            return ChunkedLocalSpec(*sizes, chunk=self.span)
        assert self.kind == "full", self.kind
        return FullAttentionSpec(*sizes)

    def first_seen(self, position: int) -> int:
        """The first token that the query of token `position` attends to."""
        if self.kind == "sliding":
            return max(position - self.span + 1, 0)
        return position // self.span * self.span if self.kind == "chunked" else 0


class AttentionCase:
    """Requests of given lengths with random queries, keys and values, one layer, one kernel.

    Keys and values are rounded to the dtype of the cache, so that what a kernel takes from its
    inputs and what it reads back are the same numbers. Blocks are dealt at random; every place that
    holds no token of a request is NaN, and so are blocks that left the window before a step: in
    every other row the null block stands for them in the table, else a foreign block. What a step
    adds is stored before the kernel is called unless it has a ``fused_kv_write``.
    """

    def __init__(
        self,
        kernel: KernelFactory,
        lengths: Sequence[int],
        setting: Setting,
        seed: int = 0,
        fused_kv_write: bool = True,
    ) -> None:
        self.lengths = list(lengths)
        self.setting = setting
        self.fused_kv_write = fused_kv_write
        self._device = torch.device(setting.device)
        spec = setting.spec()
        scale = 0.7 * setting.head_size**-0.5
        self.layer = AttentionLayer(
            setting.heads, setting.kv_heads, setting.head_size, scale, setting.soft_cap
        )
        if setting.scales is not None:
            k_scale, v_scale = (torch.tensor(one, device=self._device) for one in setting.scales)
            self.layer = attrs.evolve(self.layer, k_scale=k_scale, v_scale=v_scale)
        self.kernel = kernel(self._context(spec))
        self.blocks, self.foreign = self._deal(torch.Generator().manual_seed(seed))
        layout = self.kernel.layouts(spec)[setting.layout]
        assert sorted(layout.axes) == sorted(CANONICAL), (
            f"layout {layout.name!r} has the axes {', '.join(layout.axes)}; it must have each of "
            f"{', '.join(CANONICAL)} once"
        )
        count = 1 + SPARE_BLOCKS + sum(map(len, self.blocks))
        data = self._storage(layout, spec, count)
        self.kv = KVTensors(SLOT, 0, spec, layout, data)
        self.storage = data.permute([layout.axes.index(axis) for axis in CANONICAL])
        """View ``[kv, block, token, head, dim]`` of the storage, whatever its layout."""
        self.redraw(seed)

    def _context(self, spec: KVSpec) -> AttentionContext:
        size = self.setting
        features = () if size.soft_cap is None else ("soft_cap",)
        return AttentionContext(
            KVGroup(0, spec, size.block_size, (SLOT,)),
            getattr(torch, size.dtype),
            self._device,
            max_rows=len(self.lengths),
            max_tokens=max(sum(self.lengths), 1),
            features=frozenset(features),
        )

    def _storage(self, layout: KVLayout, spec: KVSpec, count: int) -> torch.Tensor:
        """Storage of `count` blocks, with the padding of the setting behind every block."""
        shape = layout.shape(spec, count, self.setting.block_size)
        dtype = getattr(torch, self.setting.kv_dtype)
        if not self.setting.padding:
            return torch.empty(shape, dtype=dtype, device=self._device)
        assert layout.axes[0] == "block", f"layout {layout.name!r} cannot be padded"
        page = torch.Size(shape[1:]).numel()
        pages = torch.full(
            (count, page + self.setting.padding), torch.nan, dtype=dtype, device=self._device
        )
        padded: torch.Tensor = pages[:, :page].unflatten(1, shape[1:])
        return padded

    def redraw(self, seed: int) -> None:
        """Other queries, keys and values, as in another layer; the storage is empty again."""
        draw = torch.Generator().manual_seed(seed)
        size = self.setting
        dtype = getattr(torch, size.dtype)

        def random(tokens: int, heads: int) -> torch.Tensor:
            values = torch.randn(tokens, heads, size.head_size, generator=draw)
            return values.to(self._device)

        self.queries = [random(n, size.heads).to(dtype) for n in self.lengths]
        self.keys, self.values = (
            [self._kept(random(n, size.kv_heads), side) for n in self.lengths] for side in (0, 1)
        )
        self.storage.fill_(torch.nan)

    def _kept(self, values: torch.Tensor, side: int) -> torch.Tensor:
        """`values` as the cache will give them: float32 where it holds codes."""
        dtype = getattr(torch, self.setting.kv_dtype)
        if dtype != FP8:
            return values.to(dtype)
        scale = (self.setting.scales or (1.0, 1.0))[side]
        return (values / scale).to(dtype).float() * scale

    def fill(self, rows: Rows) -> None:
        """Store what was known before a step of `rows` and is still kept."""
        for row, (count, length) in enumerate(rows):
            kept = self.first_entry(count, length) * self.setting.block_size
            self.store(row, kept, max(length - count, kept))

    def first_entry(self, count: int, length: int) -> int:
        """First entry of the block table that a row of a step needs."""
        return self.setting.first_seen(length - count) // self.setting.block_size

    def forget(self, rows: Rows) -> None:
        """Give up the blocks that a step of `rows` needs no more: others write NaN to them."""
        for row, (count, length) in enumerate(rows):
            for block in self.blocks[row][: self.first_entry(count, length)]:
                self.storage[:, block] = torch.nan

    def store(self, row: int, begin: int, end: int) -> None:
        """Store keys and values of tokens `begin` to `end` of one request."""
        block, offset = self.places(row, begin, end)
        scales = (self.setting.scales or (1.0, 1.0)) if self.storage.dtype == FP8 else (1, 1)
        for side, (given, scale) in enumerate(zip((self.keys, self.values), scales, strict=True)):
            self.storage[side, block, offset] = (given[row][begin:end] / scale).to(
                self.storage.dtype
            )

    def places(self, row: int, begin: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Block and offset of tokens `begin` to `end` of one request."""
        tokens = torch.arange(begin, end)
        blocks = torch.tensor(self.blocks[row], dtype=torch.int64)
        size = self.setting.block_size
        return blocks[tokens // size].to(self._device), (tokens % size).to(self._device)

    def run(self, rows: Rows, which: Sequence[int] | None = None) -> list[torch.Tensor]:
        """One step over rows, or over those that are named: ``[queries, heads, dim]`` per row."""
        which = range(len(rows)) if which is None else which
        return self.forward(rows, self.kernel.plan(self.step(rows, which)), which)

    def step(self, rows: Rows, which: Sequence[int]) -> AttentionStep:
        """The step as the runner would describe it."""
        counts, lengths = ([rows[row][part] for row in which] for part in (0, 1))
        size = self.setting.block_size
        lists = [self._block_list(row, *rows[row]) for row in which]
        table = torch.zeros(len(lists), max(map(len, lists)), dtype=torch.int32)
        slots = []
        for place, row in enumerate(which):
            table[place, : len(lists[place])] = torch.tensor(lists[place], dtype=torch.int32)
            count, length = rows[row]
            block, offset = self.places(row, length - count, length)
            slots.append(block * size + offset)
        return AttentionStep(
            counts,
            lengths,
            lists,
            torch.tensor([0, *counts]).cumsum(0).to(self._device, torch.int32),
            torch.tensor(lengths, dtype=torch.int32, device=self._device),
            table.to(self._device),
            torch.cat(slots),
        )

    def _block_list(self, row: int, count: int, length: int) -> list[int]:
        """The block table of one row."""
        gone = self.first_entry(count, length)
        kept = self.blocks[row][gone : -(-length // self.setting.block_size)]
        return [self.foreign if row % 2 else 0] * gone + kept

    def forward(
        self, rows: Rows, metadata: Any, which: Sequence[int] | None = None
    ) -> list[torch.Tensor]:
        """One layer of a planned step."""
        which = range(len(rows)) if which is None else which
        dtype = getattr(torch, self.setting.dtype)
        if not self.fused_kv_write:
            for row in which:
                self.store(row, *_span(rows[row]))
        new = [
            torch.cat([part[row][slice(*_span(rows[row]))] for row in which]).to(dtype)
            for part in (self.queries, self.keys, self.values)
        ]
        found = self.kernel.forward(self.layer, AttentionInputs(*new), self.kv, metadata)
        assert found.shape == new[0].shape, f"shape {list(found.shape)}, not {list(new[0].shape)}"
        assert found.dtype == dtype, f"dtype {found.dtype}, not {dtype}"
        return list(found.split([rows[row][0] for row in which]))

    def expected(self, rows: Rows) -> list[torch.Tensor]:
        """Softmax attention by its definition, in float64: ``[queries, heads, dim]`` per row."""
        group = self.setting.heads // self.setting.kv_heads
        found = []
        for row, (count, length) in enumerate(rows):
            query = self.queries[row][length - count : length].double()
            keys, values = (
                part[row][:length].double().repeat_interleave(group, 1)
                for part in (self.keys, self.values)
            )
            scores = torch.einsum("qhd,khd->hqk", query, keys) * self.layer.scale
            if self.layer.soft_cap is not None:
                scores = torch.tanh(scores / self.layer.soft_cap) * self.layer.soft_cap
            scores = scores.masked_fill(~self._seen(count, length), -torch.inf)
            found.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
        return found

    def _seen(self, count: int, length: int) -> torch.Tensor:
        """bool ``[count, length]``: the tokens that each query attends to."""
        positions = range(length - count, length)
        first = torch.tensor([self.setting.first_seen(p) for p in positions])[:, None]
        keys, last = torch.arange(length), torch.tensor(positions)[:, None]
        return ((keys >= first) & (keys <= last)).to(self._device)

    def _deal(self, draw: torch.Generator) -> tuple[list[list[int]], int]:
        """Block ids per request, in random order, and one that is nobody's; 0 is the null block."""
        counts = [-(-length // self.setting.block_size) for length in self.lengths]
        ids = 1 + torch.randperm(sum(counts) + SPARE_BLOCKS, generator=draw)
        return [part.tolist() for part in ids[: sum(counts)].split(counts)], int(ids[-1])


def _span(row: tuple[int, int]) -> tuple[int, int]:
    count, length = row
    return length - count, length
