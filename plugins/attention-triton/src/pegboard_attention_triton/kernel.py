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
from triton.tools.tensor_descriptor import TensorDescriptor

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import STRIDED_LAYOUTS, KVLayout, KVSpec, KVTensors
from pegboard.errors import UnsupportedError
from pegboard_attention_triton.kernels.decode import PAIRED_GROUP, decode
from pegboard_attention_triton.kernels.fresh import fresh
from pegboard_attention_triton.kernels.prefill import prefill
from pegboard_attention_triton.launch import (
    BANDS,
    FRESH,
    PrefillLaunch,
    decode_launch,
    fresh_launch,
    prefill_launch,
)
from pegboard_attention_triton.pieces import Cutting, Singles
from pegboard_attention_triton.plan import Prompts, Sort, StepMetadata, most_states, span_of

__all__ = ["TritonKernel"]

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

    def __init__(self, ctx: AttentionContext, *, bands: bool = BANDS, direct: bool = FRESH) -> None:
        """With `bands`, what all rows of a step share is read once for several rows; with `direct`,
        rows without a past read their keys from the step's inputs."""
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
        self._item_bytes = item
        self._direct = direct
        self._parts = max(PROGRAMS_PER_CORE * _cores(ctx.device) // spec.kv_heads, 1)
        self._lanes = self._decode.lanes if bands else 0
        self._arrivals = torch.zeros(
            (ctx.max_rows, spec.kv_heads), dtype=torch.int32, device=ctx.device
        )
        self._scratch: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return STRIDED_LAYOUTS

    def plan(self, step: AttentionStep) -> StepMetadata:
        several = any(count > 1 for count in step.query_lens)
        prompts = Prompts(step, self._spec.kv_heads, self._device) if several else None
        single = any(count == 1 for count in step.query_lens)
        cutting = Cutting.of(self._ctx, self._decode.tile, self._parts)
        singles = Singles(step, cutting) if single else None
        return StepMetadata(step.block_table, singles, prompts)

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
        strides = (
            *query.stride()[:2],
            *kv.strides("kv", "block", "head", "token"),
            table.stride(0),
        )
        sinks = query if layer.sinks is None else layer.sinks
        scales = self._scales(layer)
        call = _Call((query, out, kv.data, sinks, table), scales, (*strides, *_factors(layer)))
        constants = self._constants(layer)
        if metadata.prompts is not None:
            self._prompts(call, inputs, metadata.prompts, constants)
        if metadata.singles is not None:
            self._launch_decode(call, metadata.singles, constants)
        return out

    def _launch_decode(self, call: _Call, singles: Singles, constants: Mapping[str, Any]) -> None:
        launch = self._decode
        heads, group, dim = constants["HEADS"], constants["GROUP"], constants["DIM"]
        band_rows = singles.band_rows(self._lanes // group)
        pieces = singles.pieces(band_rows)
        lanes = triton.next_power_of_2(group) * triton.next_power_of_2(dim)
        states, marks = self._scratch_of(heads, self._lanes // group)
        decode[(heads // group, pieces.count)](
            *call.tensors,
            pieces.table,
            states,
            marks,
            self._arrivals,
            *call.scales,
            *call.numbers,
            TILE=launch.tile,
            JOIN=max(JOINED_AT_ONCE // lanes, 1),
            LANES=self._lanes if band_rows else 0,
            num_warps=launch.warps,
            num_stages=launch.stages,
            **{**constants, "DOT": self._decode_type(group)},
        )

    def _decode_type(self, group: int) -> tl.dtype:
        """Of the products of a decode step, for `group` query heads per key head."""
        narrowed = self._coded and self._ctx.dtype == torch.bfloat16
        return tl.bfloat16 if narrowed and group > PAIRED_GROUP.value else self._dot_type

    def _prompts(
        self,
        call: _Call,
        inputs: AttentionInputs,
        prompts: Prompts,
        constants: Mapping[str, Any],
    ) -> None:
        """Rows with several query tokens."""
        direct = self._direct and prompts.has("fresh")
        launch = fresh_launch(self._spec.head_size) if direct else None
        if launch is None or not self._readable(inputs):
            self._launch_prefill(call, prompts, "every", constants)
            return
        self._launch_fresh(call, inputs, prompts, launch, constants)
        if prompts.has("later"):
            self._launch_prefill(call, prompts, "later", constants)

    def _launch_prefill(
        self, call: _Call, prompts: Prompts, sort: Sort, constants: Mapping[str, Any]
    ) -> None:
        launch = prefill_launch(self._spec.head_size, self._item_bytes)
        pairs = max(launch.pairs, triton.next_power_of_2(constants["GROUP"]))
        tiles = prompts.tiles(pairs // constants["GROUP"], sort)
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

    def _launch_fresh(
        self,
        call: _Call,
        inputs: AttentionInputs,
        prompts: Prompts,
        launch: PrefillLaunch,
        constants: Mapping[str, Any],
    ) -> None:
        query, out, _, sinks, _ = call.tensors
        pairs = max(launch.pairs, triton.next_power_of_2(constants["GROUP"]))
        tiles = prompts.tiles(pairs // constants["GROUP"], "fresh")
        key, value = inputs.key, inputs.value
        fresh[(len(tiles),)](
            query,
            out,
            _matrix(key, launch.tile),
            _matrix(value, launch.tile),
            key,
            value,
            sinks,
            tiles,
            *query.stride()[:2],
            key.stride(0),
            value.stride(0),
            *call.numbers[-2:],
            TILE_M=pairs,
            TILE=launch.tile,
            num_warps=launch.warps,
            num_stages=launch.stages,
            **{name: constants[name] for name in ("HEADS", "GROUP", "DIM", "SOFT_CAP", "SINKS")},
        )

    def _readable(self, inputs: AttentionInputs) -> bool:
        """`fresh` may read these keys and values, which then are what the cache holds."""
        kept = getattr(torch, self._spec.dtype)
        return (
            self._spec.kind == "full"
            and kept.itemsize == 2
            and all(part.dtype == kept for part in (inputs.query, inputs.key, inputs.value))
            and all(_describable(part) for part in (inputs.key, inputs.value))
        )

    def _scratch_of(self, heads: int, band_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """`states` and `marks` of `decode`, the same for all layers."""
        if heads not in self._scratch:
            banded = band_rows if band_rows > 1 and self._spec.kind == "full" else 0
            size = (most_states(self._parts, banded, self._ctx.max_rows), heads)
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


def _describable(part: torch.Tensor) -> bool:
    """``[T, heads, dim]``: the heads of a token follow one another, tokens are 16 bytes aligned."""
    step = part.element_size()
    aligned = part.data_ptr() % 16 == 0 and part.stride(0) * step % 16 == 0
    return aligned and part.stride(2) == 1 and part.stride(1) == part.shape[2]


def _matrix(part: torch.Tensor, tile: int) -> TensorDescriptor:
    """``[T, heads, dim]`` as a matrix of a line per token, to be read in tiles of one head."""
    tokens, heads, dim = part.shape
    return TensorDescriptor(part, [tokens, heads * dim], [part.stride(0), 1], [tile, dim])


def _product_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> torch.dtype:
    """In which products are computed: exactly, if queries and cache differ. float16 holds 8-bit
    floats as they are, and what bfloat16 has of a query, see `kernels.softmax.narrowed`."""
    if kv_dtype == torch.float8_e4m3fn and dtype.itemsize == 2:
        return torch.float16
    return dtype if kv_dtype == dtype else torch.float32


def _cores(device: torch.device) -> int:
    if device.type != "cuda":
        return CORES
    cores: int = torch.cuda.get_device_properties(device).multi_processor_count
    return cores


def _factors(layer: AttentionLayer) -> tuple[float, float]:
    """`scale` and `cap` of `kernels.softmax.absorb`."""
    if layer.soft_cap is None:
        return layer.scale * LOG2E, 0.0
    return 2 * layer.scale / layer.soft_cap * LOG2E, layer.soft_cap * LOG2E
