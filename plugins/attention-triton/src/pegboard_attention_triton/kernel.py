"""The kernel object of one group: plans steps, launches the device code.

Keys and values of a step are in the cache already when `forward` is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
import triton
import triton.language as tl

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import KVLayout, KVSpec, KVTensors
from pegboard.errors import UnsupportedError
from pegboard_attention_triton.kernels.decode import PIECE_FIELDS, cut_rows, decode
from pegboard_attention_triton.kernels.prefill import prefill
from pegboard_attention_triton.launch import decode_launch, prefill_launch
from pegboard_attention_triton.plan import Prompts, StepMetadata, most_pieces, span_of

__all__ = ["LAYOUTS", "TritonKernel"]

LAYOUTS = (
    KVLayout("block-kv-head-token-dim", ("block", "kv", "head", "token", "dim")),
    KVLayout("block-kv-token-head-dim", ("block", "kv", "token", "head", "dim")),
    KVLayout("kv-block-head-token-dim", ("kv", "block", "head", "token", "dim")),
    KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim")),
)
"""In order of preference: a page is one run of bytes, so groups of any kind share memory; in the
first, the tokens of a block that a program reads follow one another."""

PROGRAMS_PER_CORE = 4
"""Programs of a decode step, for each core of the device, that its rows are cut into if they are
long enough: as many as run at a time."""
CORES = 132
"""Of a device that does not say: those of an H200."""
JOINED_AT_ONCE = 8192
"""Numbers of the states that a program of four warps joins at a time: 64 registers per thread."""
LOG2E = 1.4426950408889634

_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


class TritonKernel:
    """Full, sliding-window and chunked causal attention of one KV group."""

    def __init__(self, ctx: AttentionContext) -> None:
        spec = ctx.group.spec
        if spec.value_head_size not in (None, spec.head_size):
            raise UnsupportedError(
                f"attention backend 'triton': value_head_size={spec.value_head_size} differs from "
                f"head_size={spec.head_size}"
            )
        self._ctx = ctx
        self._spec = spec
        self._device = ctx.device
        self._block = ctx.group.block_size
        stored: torch.dtype = getattr(torch, spec.dtype)
        self._coded = stored == torch.float8_e4m3fn
        self._one = torch.ones((), device=ctx.device)
        product = _product_dtype(ctx.dtype, stored)
        self._dot_type = _TYPES[product]
        item = 1 if self._coded and product.itemsize == 2 else product.itemsize
        self._decode = decode_launch(spec.head_size, item)
        self._prefill = prefill_launch(spec.head_size, item)
        self._parts = max(PROGRAMS_PER_CORE * _cores(ctx.device) // spec.kv_heads, 1)
        self._rows = triton.next_power_of_2(ctx.max_rows)
        self._arrivals = torch.zeros(
            (ctx.max_rows, spec.kv_heads), dtype=torch.int32, device=ctx.device
        )
        self._scratch: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return LAYOUTS

    def plan(self, step: AttentionStep) -> StepMetadata:
        several = any(count > 1 for count in step.query_lens)
        prompts = Prompts(step, self._spec.kv_heads, self._device) if several else None
        return StepMetadata(step.block_table, self._pieces(step), prompts)

    def forward(
        self,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        metadata: StepMetadata,
    ) -> torch.Tensor:
        query = inputs.query if inputs.query.stride(2) == 1 else inputs.query.contiguous()
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        table = metadata.block_table
        strides = (*query.stride()[:2], *_strides(kv), table.stride(0))
        sinks = query if layer.sinks is None else layer.sinks
        scales = self._scales(layer)
        call = _Call((query, out, kv.data, sinks, table), scales, (*strides, *_factors(layer)))
        constants = self._constants(layer)
        if metadata.prompts is not None:
            self._launch_prefill(call, metadata.prompts, constants)
        if metadata.pieces is not None:
            self._launch_decode(call, metadata.pieces, constants)
        return out

    def _pieces(self, step: AttentionStep) -> torch.Tensor | None:
        """The table that `cut_rows` fills."""
        tile = self._decode.tile
        room = most_pieces(step, self._spec, self._block, tile, self._parts)
        if not room:
            return None
        pieces = torch.empty((room, PIECE_FIELDS), dtype=torch.int32, device=self._device)
        cut_rows[(1,)](
            step.kv_lens_device,
            step.query_starts,
            pieces,
            len(step.query_lens),
            room,
            KIND=self._spec.kind,
            SPAN=span_of(self._spec),
            BLOCK=self._block,
            TILE=tile,
            PARTS=self._parts,
            ROWS=self._rows,
        )
        return pieces

    def _launch_decode(
        self, call: _Call, pieces: torch.Tensor, constants: Mapping[str, Any]
    ) -> None:
        launch = self._decode
        heads, group, dim = constants["HEADS"], constants["GROUP"], constants["DIM"]
        lanes = triton.next_power_of_2(group) * triton.next_power_of_2(dim)
        states, marks = self._scratch_of(heads)
        decode[(heads // group, len(pieces))](
            *call.tensors,
            pieces,
            states,
            marks,
            self._arrivals,
            *call.scales,
            *call.numbers,
            TILE=launch.tile,
            JOIN=max(JOINED_AT_ONCE // lanes, 1),
            num_warps=launch.warps,
            num_stages=launch.stages,
            **constants,
        )

    def _launch_prefill(self, call: _Call, prompts: Prompts, constants: Mapping[str, Any]) -> None:
        launch = self._prefill
        pairs = max(launch.pairs, triton.next_power_of_2(constants["GROUP"]))
        tiles = prompts.tiles(pairs // constants["GROUP"])
        prefill[(len(tiles),)](
            *call.tensors,
            tiles,
            *call.scales,
            *call.numbers,
            TILE_M=pairs,
            TILE=launch.tile,
            KIND=self._spec.kind,
            SPAN=span_of(self._spec),
            num_warps=launch.warps,
            num_stages=launch.stages,
            **constants,
        )

    def _scratch_of(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`states` and `marks` of `decode`, the same for all layers: at most ``2 * parts`` pieces
        belong to rows of several pieces, as each of these rows has more than a part."""
        if heads not in self._scratch:
            size = (2 * self._parts, heads)
            states = torch.empty((*size, self._spec.head_size), device=self._device)
            self._scratch[heads] = states, torch.empty((*size, 2), device=self._device)
        return self._scratch[heads]

    def _scales(self, layer: AttentionLayer) -> tuple[torch.Tensor, torch.Tensor]:
        """Of keys and values; asked for only where those are 8-bit floats."""
        k_scale = self._one if layer.k_scale is None else layer.k_scale
        return k_scale, self._one if layer.v_scale is None else layer.v_scale

    def _constants(self, layer: AttentionLayer) -> Mapping[str, Any]:
        """What both kernels are compiled for."""
        return {
            "HEADS": layer.heads,
            "GROUP": layer.heads // layer.kv_heads,
            "DIM": layer.head_size,
            "BLOCK": self._block,
            "DOT": self._dot_type,
            "SOFT_CAP": layer.soft_cap is not None,
            "SINKS": layer.sinks is not None,
            "SCALED": self._coded,
        }


@attrs.frozen(eq=False)
class _Call:
    """What both kernels are given in one layer."""

    tensors: tuple[torch.Tensor, ...]
    """Query, result, storage, sinks (if there are any), block table."""
    scales: tuple[torch.Tensor, torch.Tensor]
    """Of keys and values."""
    numbers: tuple[float, ...]
    """Strides and score factors."""


def _product_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> torch.dtype:
    """In which products are computed: exactly, if queries and cache differ. Every wider type holds
    8-bit floats as they are."""
    return dtype if kv_dtype in (dtype, torch.float8_e4m3fn) else torch.float32


def _cores(device: torch.device) -> int:
    if device.type != "cuda":
        return CORES
    cores: int = torch.cuda.get_device_properties(device).multi_processor_count
    return cores


def _strides(kv: KVTensors) -> tuple[int, ...]:
    """From keys to values, block to block, head to head, token to token, in elements."""
    axes = kv.layout.axes
    return tuple(kv.data.stride(axes.index(axis)) for axis in ("kv", "block", "head", "token"))


def _factors(layer: AttentionLayer) -> tuple[float, float]:
    """`scale` and `cap` of `kernels.softmax.absorb`."""
    if layer.soft_cap is None:
        return layer.scale * LOG2E, 0.0
    return 2 * layer.scale / layer.soft_cap * LOG2E, layer.soft_cap * LOG2E
