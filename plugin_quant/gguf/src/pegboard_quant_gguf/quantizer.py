"""The surface *quantisation*: which kernel keeps and multiplies which layer.

Two ways, by compute dtype. Exact (float32, float16): weights stay as the file has them, a tile at a
time is dequantised to float32 and multiplied in float32. Fast (bfloat16 on a CPU): 4-bit layers use
torch's int4 kernel, see `packed`; the other types are dequantised by tile as in the exact way, with
bfloat16 activations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch

from pegboard.api.checkpoint import PLAIN_TYPES
from pegboard.api.quant import LayerSpec, LinearMethod, ParamSpec, QuantContext, SourceTensor
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_quant_gguf.blocktiles import BlockTiles
from pegboard_quant_gguf.dequant import DEQUANTISERS
from pegboard_quant_gguf.kernels import Kernel, NibbleTiles, PlainRows, SignedTiles
from pegboard_quant_gguf.packed import PackedNibbles, has_bfloat16_units, packed_width
from pegboard_quant_gguf.types import SUPPORTED_TYPES, TYPES_BY_NAME

__all__ = ["GgufMethod", "GgufQuantizer", "quantizer"]

_DEQUANTISE_ROWS = 4096


def quantizer(ctx: QuantContext) -> GgufQuantizer:
    """What the format's descriptor refers to."""
    return GgufQuantizer(ctx)


class GgufQuantizer:
    """Gives every layer with a block type its method; layers of plain types are left to the
    core."""

    def __init__(self, ctx: QuantContext) -> None:
        self._dtype = ctx.dtype
        # The layout is asked for once and only where it is used.
        self._width = packed_width() if ctx.dtype == "bfloat16" else None
        self._units = has_bfloat16_units()

    def method(self, layer: LayerSpec) -> LinearMethod | None:
        """The method for `layer`; None if all its parts are plain or nothing is to be loaded.

        Raises `UnsupportedError` naming layer, tensor and type for a type that this version does
        not compute with, and for a quantised stack of experts.
        """
        weights = tuple(_weight(parts) for parts in layer.sources)
        if not weights or any(weight is None for weight in weights):
            return None
        found = tuple(weight for weight in weights if weight is not None)
        if all(weight.stored_type in PLAIN_TYPES for weight in found):
            return None
        for weight in found:
            _check(layer, weight)
        types = tuple(weight.stored_type for weight in found)
        rows = "float32" if self._dtype == "bfloat16" and not self._units else self._dtype
        return GgufMethod(layer, types, self._dtype, self._kernel, cpu_rows=rows)

    def _kernel(self, stored_type: str) -> Kernel:
        if stored_type in PLAIN_TYPES:
            return PlainRows()
        if stored_type in ("Q4_0", "Q4_1"):
            if self._width is not None:
                return PackedNibbles(stored_type, self._width, self._units)
            return NibbleTiles(stored_type)
        return SignedTiles() if stored_type == "Q8_0" else BlockTiles(stored_type)


def _weight(parts: Sequence[SourceTensor]) -> SourceTensor | None:
    """The weight among a part's tensors (a bias may stand beside it)."""
    return next((source for source in parts if source.name.rpartition(".")[2] == "weight"), None)


def _check(layer: LayerSpec, weight: SourceTensor) -> None:
    if weight.stored_type not in PLAIN_TYPES and weight.stored_type not in DEQUANTISERS:
        raise UnsupportedError(
            f"{layer.prefix}: tensor {weight.name!r} is stored as {weight.stored_type}; "
            f"{weight.stored_type} is not "
            f"supported by this version (supported: {', '.join(SUPPORTED_TYPES)})"
        )
    if layer.experts or layer.kind == "experts":
        raise UnsupportedError(
            f"{layer.prefix}: quantised experts ({weight.name!r}) are not supported by this version"
        )


@attrs.frozen
class _Run:
    """Neighbouring parts of one type, kept and multiplied as one weight."""

    kernel: Kernel
    parts: tuple[int, ...]
    outputs: int
    """On this rank."""
    prefix: str

    def own(self, params: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
        """This run's tensors among the layer's; a lone run has no prefix."""
        if not self.prefix:
            return params
        return {
            name[len(self.prefix) :]: value
            for name, value in params.items()
            if name.startswith(self.prefix)
        }


class GgufMethod:
    """One layer: a stack of parts whose types may differ.

    Neighbouring parts of one type form a run. Runtime parameters are the tensors of its kernel;
    with several runs, their names start with the number of the run.
    """

    def __init__(
        self,
        layer: LayerSpec,
        stored_types: tuple[str, ...],
        dtype: str,
        kernel: Callable[[str], Kernel],
        *,
        cpu_rows: str,
    ) -> None:
        """`dtype`: to compute in; `cpu_rows`: of what `lookup` gives on a CPU."""
        self._layer = layer
        self._types = stored_types
        self._dtype = dtype
        self._cpu_rows = cpu_rows
        self._runs = self._make_runs(kernel)
        # Rounding logits to bfloat16 costs more accuracy than all else in the fast way.
        packed = any(isinstance(run.kernel, PackedNibbles) for run in self._runs)
        self._wide_logits = (layer.kind == "head" or layer.tied) and not packed

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """The stored rows of one part: bytes of a block type, or a plain weight in the compute
        dtype."""
        layer, stored_type = self._layer, self._types[part]
        axis = {"column": 0, "vocab": 0, "row": 1}.get(layer.role)
        size = layer.part_sizes[part]
        if stored_type in PLAIN_TYPES:
            return (ParamSpec("weight", (size, layer.in_features), self._dtype, shard_axis=axis),)
        kind = TYPES_BY_NAME[stored_type]
        if layer.in_features % kind.block_size:
            raise ConfigError(
                f"{layer.prefix}: {layer.in_features} inputs are no multiple of "
                f"{kind.block_size}, the block of "
                f"{stored_type}"
            )
        granule = kind.block_bytes if axis == 1 else 1
        shape = (size, kind.row_bytes(layer.in_features))
        return (ParamSpec("weight", shape, "uint8", shard_axis=axis, granule=granule),)

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Bring stored rows into the kernels' layouts; with `runtime`, into the tensors that are
        there already."""
        made: dict[str, torch.Tensor] = {}
        for run in self._runs:
            raw = [loaded["weight"][part] for part in run.parts]
            joined = raw[0] if len(raw) == 1 else torch.cat(list(raw))
            made.update(
                {run.prefix + name: value for name, value in run.kernel.prepare(joined).items()}
            )
        if runtime is None:
            return made
        for name, value in made.items():
            runtime[name].copy_(value)
        return runtime

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        """``x [rows, in] -> [rows, sum(part_sizes)]`` without bias, in the dtype of `x` or, for
        logits that are computed in float32 anyway, in float32."""
        if self._wide_logits:
            x = x.float()
        if x.shape[0] == 0:
            return x.new_empty(0, sum(run.outputs for run in self._runs))
        products = [run.kernel.multiply(run.own(params), x, run.outputs) for run in self._runs]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)

    def lookup(self, params: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor:
        """Rows of an embedding ``ids [n] -> [n, in]``; only these rows are dequantised.

        In the compute dtype; for bfloat16 on a CPU without units for it in float32, which is faster
        there and more accurate.
        """
        (run,) = self._runs
        rows = run.kernel.rows(run.own(params), ids)
        return rows.to(getattr(torch, self._cpu_rows if rows.device.type == "cpu" else self._dtype))

    def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
        """The whole weight as ``float32 [sum(part_sizes), in]``."""
        tiles = []
        for run in self._runs:
            own = run.own(params)
            device = next(iter(own.values())).device
            for start in range(0, run.outputs, _DEQUANTISE_ROWS):
                ids = torch.arange(start, min(start + _DEQUANTISE_ROWS, run.outputs), device=device)
                tiles.append(run.kernel.rows(own, ids))
        return torch.cat(tiles)

    def _make_runs(self, kernel: Callable[[str], Kernel]) -> tuple[_Run, ...]:
        """Join neighbouring parts of the same type; all plain types count as one, they have one
        dtype once loaded."""
        kinds = ["plain" if kind in PLAIN_TYPES else kind for kind in self._types]
        starts = [part for part in range(len(kinds)) if part == 0 or kinds[part] != kinds[part - 1]]
        layer = self._layer
        runs = []
        for number, (start, stop) in enumerate(zip(starts, [*starts[1:], len(kinds)], strict=True)):
            prefix = f"{number}." if len(starts) > 1 else ""
            outputs = sum(map(layer.outputs, range(start, stop)))
            runs.append(
                _Run(kernel(self._types[start]), tuple(range(start, stop)), outputs, prefix)
            )
        return tuple(runs)
