"""Products on CUDA devices that multiply e4m3 (compute capability 8.9 and newer).

Up to `FEW_ROWS` rows the weights' way through memory is all that counts: they are widened in
registers and activations keep their precision. Above, activations are rounded too and the matrix
units multiply 8-bit numbers: for some dozens of rows torch's product without scales and then a
kernel for these, or a kernel of our own; for more, torch's product with a scale per row and per
output; with block scales, another kernel of our own. `launch.py` has the borders.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from pegboard_quant_fp8 import launch
from pegboard_quant_fp8.codes import CODES
from pegboard_quant_fp8.kernels import blocks, coded, few_rows, rounding
from pegboard_quant_fp8.launch import (
    FEW_ROWS,
    coded_launch,
    few_launch,
    one_launch,
    padded_rows,
    tile_rows,
)
from pegboard_quant_fp8.products import widened_product
from pegboard_quant_fp8.schemes import Activations

__all__ = ["GROUP", "DeviceProducts", "round_groups", "round_rows"]

GROUP = 128
"""Inputs that share a scale, where the kernels with block scales can be used."""
FAST_ACCUMULATION = True
"""Sums of the matrix units keep about 14 bits: their error is far below that of activations with
3 bits of mantissa."""
_WHOLE = 16384
"""Longest row that a program of the rounding kernel holds in registers."""
_ALIGNED = 16
"""Sizes that torch's product takes are multiples of this."""
_COUNTERS = 4096
"""Tiles, at most, of a launch in which several programs share one."""
_DOT = {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}


def round_rows(
    x: torch.Tensor, given: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """``x [rows, K] -> codes e4m3 [rows, K], scales float32 [rows, 1]``, one launch.

    `given`, float32 [1], is used as every row's scale, and what it cannot reach is cut off; else a
    scale is the row's largest magnitude over 448. Rows of `x` may be apart, their elements not.
    """
    codes = torch.empty(x.shape, dtype=CODES, device=x.device)
    scales = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
    _round_rows_into(x, codes, scales, given)
    return codes, scales


def _round_rows_into(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, given: torch.Tensor | None
) -> None:
    rows, inputs = x.shape
    if rows == 0:
        return
    block = min(triton.next_power_of_2(inputs), _WHOLE)
    rounding.round_rows[(rows,)](
        x,
        codes,
        scales,
        scales if given is None else given,
        inputs,
        x.stride(0),
        STATIC=given is not None,
        BLOCK=block,
        WHOLE=inputs <= block,
        num_warps=8 if block > 4096 else 4,
    )


def round_groups(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``x [rows, K] -> codes e4m3 [rows, K], scales float32 [rows, K / 128]`` (rounded up), one
    launch."""
    rows, inputs = x.shape
    groups = triton.cdiv(inputs, GROUP)
    codes = torch.empty(x.shape, dtype=CODES, device=x.device)
    scales = torch.empty((rows, groups), dtype=torch.float32, device=x.device)
    several = 8
    if rows:
        rounding.round_groups[(rows, triton.cdiv(groups, several))](
            x, codes, scales, inputs, x.stride(0), groups, GROUP=GROUP, GROUPS=several
        )
    return codes, scales


def _torch_product(
    codes: torch.Tensor, weight: torch.Tensor, row_scale: torch.Tensor, output_scale: torch.Tensor
) -> torch.Tensor:
    """``codes @ weight.T`` in bfloat16, with scales per row and output or one for all of each."""
    return torch._scaled_mm(
        codes,
        weight.T,
        scale_a=row_scale,
        scale_b=output_scale,
        out_dtype=torch.bfloat16,
        use_fast_accum=FAST_ACCUMULATION,
    )


class DeviceProducts:
    """`Products` of layers with one kind of activations; all work is in the order of one stream."""

    def __init__(self, activations: Activations) -> None:
        self._activations = activations
        self._arrivals: torch.Tensor | None = None
        self._one: torch.Tensor | None = None

    def prepare(self, device: torch.device) -> None:
        """Make the counters, zeros that every launch leaves behind as it found them, and the scale
        of a product that has none.

        They are there before any step is recorded, and stay where they are.
        """
        if self._arrivals is None:
            self._arrivals = torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
            self._one = torch.ones((), dtype=torch.float32, device=device)

    def round_rows(self, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        _round_rows_into(weight.contiguous(), codes, scales, None)

    def product(self, params: Mapping[str, Any], x: torch.Tensor, group: int) -> torch.Tensor:
        rows, inputs = x.shape
        outputs = params["weight"].shape[0]
        if rows == 0:
            return x.new_empty(0, outputs)
        if x.stride(1) != 1:
            x = x.contiguous()
        if rows <= FEW_ROWS and group in (0, GROUP):
            return self._few(params, x, group)
        if self._activations == "none" or group not in (0, GROUP):
            return widened_product(params, x, group)
        if group:
            return self._blocks(params, x)
        if inputs % _ALIGNED or outputs % _ALIGNED:
            return widened_product(params, x, group)
        codes, scales = round_rows(x, params.get("input_scale"))
        if rows <= launch.CODED_ROWS:
            return self._coded(params, codes, scales, x.dtype)
        if rows <= launch.TENSOR_ROWS and outputs < launch.WIDE_OUTPUTS:
            return self._scaled_after(params, codes, scales, x.dtype)
        product = _torch_product(codes, params["weight"], scales, params["scale"][None, :])
        return product.to(x.dtype)

    def _scaled_after(
        self,
        params: Mapping[str, Any],
        codes: torch.Tensor,
        scales: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        """Torch's product of codes, whose scales are all one, and a kernel that applies theirs."""
        assert self._one is not None, "prepare() comes first"
        sums = _torch_product(codes, params["weight"], self._one, self._one)
        rows, outputs = sums.shape
        out = sums if dtype == sums.dtype else torch.empty_like(sums, dtype=dtype)
        block = min(triton.next_power_of_2(outputs), 2048)
        coded.scale_results[(rows, triton.cdiv(outputs, block))](
            sums, scales, params["scale"], out, outputs, BLOCK=block, num_warps=4
        )
        return out

    def _coded(
        self,
        params: Mapping[str, Any],
        codes: torch.Tensor,
        scales: torch.Tensor,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        weight, scale = params["weight"], params["scale"]
        (rows, inputs), outputs = codes.shape, weight.shape[0]
        out = torch.empty((rows, outputs), dtype=dtype, device=codes.device)
        cut, padded = coded_launch(outputs, inputs, rows), padded_rows(rows)
        tiles = triton.cdiv(outputs, cut.tile_n)
        partial, arrivals = scales, self._arrivals
        if cut.split > 1:
            assert arrivals is not None and tiles <= _COUNTERS, "prepare() comes first"
            partial = scales.new_empty(cut.split * outputs * padded)
        coded.coded_rows[(tiles, cut.split)](
            codes,
            scales,
            weight,
            scale,
            out,
            partial,
            arrivals if cut.split > 1 else scale,
            rows,
            outputs,
            inputs,
            ROWS=padded,
            TILE_N=cut.tile_n,
            TILE_K=cut.tile_k,
            SPLIT=cut.split,
            EVEN=inputs % cut.tile_k == 0,
            STAGES=cut.stages,
            num_warps=cut.warps,
        )
        return out

    def _blocks(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        codes, scales = round_groups(x)
        rows, inputs = x.shape
        weight = params["weight"]
        outputs = weight.shape[0]
        out = x.new_empty(rows, outputs)
        tile_m, tile_n = tile_rows(rows), 128
        blocks.block_product[(triton.cdiv(rows, tile_m) * triton.cdiv(outputs, tile_n),)](
            codes,
            scales,
            weight,
            params["scale"],
            params["block_of_row"],
            out,
            rows,
            outputs,
            inputs,
            scales.shape[1],
            TILE_M=tile_m,
            TILE_N=tile_n,
            GROUP=GROUP,
            BAND=8,
            EVEN=inputs % GROUP == 0,
            num_warps=tile_m // 16,
            num_stages=4,
        )
        return out

    def _few(self, params: Mapping[str, Any], x: torch.Tensor, group: int) -> torch.Tensor:
        rows, inputs = x.shape
        weight, scale = params["weight"], params["scale"]
        outputs = weight.shape[0]
        out = x.new_empty(rows, outputs)
        if rows == 1 and not group:
            one = one_launch(outputs, inputs)
            few_rows.one_row[(triton.cdiv(outputs, one.tile_n),)](
                x,
                weight,
                scale,
                out,
                outputs,
                inputs,
                TILE_N=one.tile_n,
                TILE_K=one.tile_k,
                EVEN=inputs % one.tile_k == 0,
                num_warps=one.warps,
            )
            return out
        few, padded = few_launch(outputs, inputs), padded_rows(rows)
        tile_k = min(few.tile_k, group) if group else few.tile_k  # a tile has one scale
        tiles = triton.cdiv(outputs, few.tile_n)
        partial, arrivals = out, self._arrivals
        if few.split > 1:
            assert arrivals is not None and tiles <= _COUNTERS, "prepare() comes first"
            partial = out.new_empty(few.split * outputs * padded, dtype=torch.float32)
        few_rows.few_rows[(tiles, few.split)](
            x,
            weight,
            scale,
            params["block_of_row"] if group else scale,
            out,
            partial,
            arrivals if few.split > 1 else scale,
            rows,
            outputs,
            inputs,
            x.stride(0),
            scale.shape[1] if group else 0,
            ROWS=padded,
            TILE_N=few.tile_n,
            TILE_K=tile_k,
            SPLIT=few.split,
            GROUP=group,
            EVEN=inputs % tile_k == 0,
            WIDE=few.wide,
            DOT=_DOT[x.dtype],
            num_warps=few.warps,
            num_stages=few.stages,
        )
        return out
