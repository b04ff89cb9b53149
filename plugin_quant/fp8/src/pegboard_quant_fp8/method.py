"""The weight owner of an e4m3 layer: stored codes and scales, or codes made from wider weights.

Runtime parameters are the same in both cases::

    weight        e4m3 [N, K], the parts of a stack one below the other
    scale         float32 [N], or with block scales [blocks of all parts, ceil(K / inputs of one)]
    block_of_row  int32 [N], with block scales: the row of `scale` that a row of `weight` uses
    input_scale   float32 [1], with static activations: the largest of the parts' scales
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pegboard.api.quant import LayerSpec, ParallelRole, ParamSpec, SourceTensor
from pegboard.errors import CheckpointError
from pegboard_quant_fp8.codes import CODES, decoded_rows, round_blocks, row_tiles
from pegboard_quant_fp8.products import Products
from pegboard_quant_fp8.schemes import Scheme

__all__ = ["Fp8Method", "OnlineMethod", "StoredMethod", "suffix"]

_AXES: Mapping[ParallelRole, int | None] = {"replicated": None, "column": 0, "vocab": 0, "row": 1}
_WEIGHT_SCALES = ("weight_scale", "weight_scale_inv")
"""Names of what a code is multiplied by. The second is no inverse, in spite of its name."""
_INPUT_SCALES = ("input_scale", "activation_scale")


def suffix(source: SourceTensor) -> str:
    """The last component of a stored name."""
    return source.name.rpartition(".")[2]


class Fp8Method:
    """What both kinds of layers do in a step."""

    def __init__(
        self, layer: LayerSpec, scheme: Scheme, dtype: torch.dtype, products: Products
    ) -> None:
        """`dtype` is the compute dtype."""
        self._layer = layer
        self._scheme = scheme
        self._dtype = dtype
        self._products = products
        self._group = scheme.block[1] if scheme.block is not None else 0

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        """``x [rows, in] -> [rows, sum(part_sizes)]`` in the dtype of `x`, without bias."""
        return self._products.product(params, x, self._group)

    def lookup(self, params: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor:
        """Rows of an embedding in the compute dtype; only these rows are widened."""
        return decoded_rows(params, ids, self._group).to(self._dtype)

    def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
        """The whole weight ``float32 [sum(part_sizes), in]``, exactly what codes and scales say."""
        shape = params["weight"].shape
        tiles = [
            decoded_rows(params, slice(start, stop), self._group)
            for start, stop in row_tiles(*shape)
        ]
        return torch.cat(tiles) if tiles else params["weight"].float()

    def _places(self, parts: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
        """``(start, stop)`` of each part's rows in the stack."""
        places, start = [], 0
        for part in parts:
            places.append((start, start + part.shape[0]))
            start += part.shape[0]
        return places

    def _block_of_row(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Each part begins a block of its own, so that no block has rows of two scales."""
        assert self._scheme.block is not None
        height, before, maps = self._scheme.block[0], 0, []
        for part in parts:
            rows = torch.arange(part.shape[0], dtype=torch.int32, device=part.device)
            maps.append(rows // height + before)
            before += -(-part.shape[0] // height)
        return torch.cat(maps)

    def _kept(
        self, made: Mapping[str, torch.Tensor], runtime: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """What is there already, with the values of `made`."""
        for name, value in made.items():
            runtime[name].copy_(value)
        return runtime


class StoredMethod(Fp8Method):
    """A layer whose parts are stored as codes and scales."""

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """Codes, the scale under the name that the checkpoint gives it, and a static activation
        scale."""
        layer, scheme = self._layer, self._scheme
        size, inputs = layer.part_sizes[part], layer.in_features
        axis = _AXES[layer.role]
        granule = 1
        if scheme.block is not None and axis is not None:
            granule = scheme.block[axis]
        specs = [ParamSpec("weight", (size, inputs), "float8_e4m3fn", axis, granule)]
        specs.append(self._scale_spec(part, axis))
        if scheme.activations == "static":
            name, shape = self._stored(part, _INPUT_SCALES, ((1,), (), (1, 1)))
            specs.append(ParamSpec(name, shape, "float32"))
        return tuple(specs)

    def _scale_spec(self, part: int, axis: int | None) -> ParamSpec:
        size, block = self._layer.part_sizes[part], self._scheme.block
        names = _WEIGHT_SCALES
        if block is not None:
            blocks = (-(-size // block[0]), -(-self._layer.in_features // block[1]))
            name, shape = self._stored(part, names[::-1], (blocks,))
        elif self._scheme.weights == "channel":
            name, shape = self._stored(part, names, ((size, 1), (size,)))
            axis = axis if axis == 0 else None
        else:
            name, shape = self._stored(part, names, ((1,), (), (1, 1)))
            axis = None
        return ParamSpec(name, shape, "float32", axis)

    def _stored(
        self, part: int, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
    ) -> tuple[str, tuple[int, ...]]:
        """Name and shape as the checkpoint has them, the first of each if it has another."""
        sources = self._layer.sources[part] if self._layer.sources else ()
        found = next((s for name in names for s in sources if suffix(s) == name), None)
        if found is None:
            return names[0], shapes[0]
        return suffix(found), found.shape if found.shape in shapes else shapes[0]

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Join the parts; a scale per part becomes one per output, which changes no value.

        Raises `CheckpointError` for scales that are negative or not finite, and for a static
        activation scale of zero. A weight scale of zero makes zeros.
        """
        codes = loaded["weight"]
        self._products.prepare(codes[0].device)
        made = {"scale": self._joined_scales(loaded)}
        if self._scheme.block is not None:
            made["block_of_row"] = self._block_of_row(codes)
        if self._scheme.activations == "static":
            made["input_scale"] = self._input_scale(loaded)
        if runtime is None:
            whole = codes[0] if len(codes) == 1 else torch.cat(tuple(codes))
            return {"weight": whole, **made}
        for (start, stop), part in zip(self._places(codes), codes, strict=True):
            runtime["weight"][start:stop].copy_(part)
        return self._kept(made, runtime)

    def _joined_scales(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> torch.Tensor:
        scales = self._by_part(loaded, _WEIGHT_SCALES)
        for part, scale in enumerate(scales):
            if not bool((scale.isfinite() & (scale >= 0)).all()):
                raise self._bad(part, _WEIGHT_SCALES, "finite numbers of at least 0")
        if self._scheme.block is not None:
            return torch.cat(scales)
        sizes = [codes.shape[0] for codes in loaded["weight"]]
        flat = (scale.reshape(-1) for scale in scales)
        return torch.cat([s.expand(size) for s, size in zip(flat, sizes, strict=True)])

    def _input_scale(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> torch.Tensor:
        """One scale for the input that all parts share: the largest cuts off least."""
        scales = self._by_part(loaded, _INPUT_SCALES)
        for part, scale in enumerate(scales):
            if not bool((scale.isfinite() & (scale > 0)).all()):
                raise self._bad(part, _INPUT_SCALES, "a finite number above 0")
        return torch.stack([scale.reshape(()) for scale in scales]).amax().reshape(1)

    def _by_part(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], names: Sequence[str]
    ) -> list[torch.Tensor]:
        """The parts' tensors of a kind; parts may call theirs by different names."""
        waiting = {name: iter(loaded.get(name, ())) for name in names}
        found = []
        for part in range(len(loaded["weight"])):
            (name,) = (spec.name for spec in self.parameters(part) if spec.name in names)
            found.append(next(waiting[name]))
        return found

    def _bad(self, part: int, names: Sequence[str], allowed: str) -> CheckpointError:
        sources = self._layer.sources[part] if self._layer.sources else ()
        stored = [source.name for source in sources if suffix(source) in names]
        name = repr(stored[0]) if stored else f"{names[0]} of part {part}"
        return CheckpointError(f"{self._layer.prefix}: tensor {name} must hold {allowed}")


class OnlineMethod(Fp8Method):
    """A layer of plain weights, rounded on the device as soon as it is loaded.

    Scales are per output, or per block where the checkpoint's own scheme has blocks.
    """

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """The weight in the compute dtype."""
        shape = (self._layer.part_sizes[part], self._layer.in_features)
        dtype = str(self._dtype).removeprefix("torch.")
        return (ParamSpec("weight", shape, dtype, _AXES[self._layer.role]),)

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Round part by part into one weight, in place on a weight update.

        Raises `CheckpointError` if a weight is not finite.
        """
        parts = loaded["weight"]
        self._products.prepare(parts[0].device)
        params = self._empty(parts) if runtime is None else runtime
        blocks = 0
        for (start, stop), part in zip(self._places(parts), parts, strict=True):
            codes = params["weight"][start:stop]
            if self._scheme.block is None:
                self._products.round_rows(part, codes, params["scale"][start:stop])
                continue
            height = -(-part.shape[0] // self._scheme.block[0])
            round_blocks(part, codes, params["scale"][blocks : blocks + height], self._scheme.block)
            blocks += height
        if not bool(params["scale"].isfinite().all()):
            raise CheckpointError(
                f"{self._layer.prefix}: the weight holds numbers that are not finite"
            )
        return params

    def _empty(self, parts: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runtime parameters without values, but for the map of rows to blocks."""
        rows, inputs = sum(part.shape[0] for part in parts), parts[0].shape[1]
        block, device = self._scheme.block, parts[0].device
        weight = torch.empty((rows, inputs), dtype=CODES, device=device)
        if block is None:
            scale = torch.empty(rows, dtype=torch.float32, device=device)
            return {"weight": weight, "scale": scale}
        heights = sum(-(-part.shape[0] // block[0]) for part in parts)
        shape = (heights, -(-inputs // block[1]))
        scale = torch.empty(shape, dtype=torch.float32, device=device)
        return {"weight": weight, "scale": scale, "block_of_row": self._block_of_row(parts)}
