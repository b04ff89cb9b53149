"""Products with e4m3 weights, wherever torch runs: a tile of weights is widened and multiplied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from pegboard_quant_fp8.codes import decoded_rows, round_rows, row_tiles

__all__ = ["Products", "TiledProducts", "widened_product"]


class Products(Protocol):
    """Arithmetic of one model's layers; shared by all of them, holds no weights."""

    def prepare(self, device: torch.device) -> None:
        """Called whenever a layer is filled, before its first product."""
        ...

    def product(self, params: Mapping[str, Any], x: torch.Tensor, group: int) -> torch.Tensor:
        """``x [rows, K] -> [rows, N]`` in the dtype of `x`; `group` as in `decoded_rows`."""
        ...

    def round_rows(self, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        """As `pegboard_quant_fp8.codes.round_rows`, on the device of `weight`."""
        ...


class TiledProducts:
    """Exact weights, activations as they are; on a CPU all arithmetic is in float32."""

    def prepare(self, device: torch.device) -> None:
        """There is nothing to prepare."""

    def product(self, params: Mapping[str, Any], x: torch.Tensor, group: int) -> torch.Tensor:
        return widened_product(params, x, group)

    def round_rows(self, weight: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor) -> None:
        round_rows(weight, codes, scales)


def widened_product(params: Mapping[str, Any], x: torch.Tensor, group: int) -> torch.Tensor:
    """``x @ weight.T`` with at most one tile of the weight wide at a time."""
    outputs, inputs = params["weight"].shape
    out = x.new_empty(x.shape[0], outputs)
    if x.shape[0] == 0:
        return out
    wide = x.float() if x.device.type == "cpu" else x
    for start, stop in row_tiles(outputs, inputs):
        tile = decoded_rows(params, slice(start, stop), group)
        out[:, start:stop] = wide @ tile.to(wide.dtype).T
    return out
