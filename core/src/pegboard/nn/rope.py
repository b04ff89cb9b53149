"""Rotary position embeddings as a module."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from pegboard.api.model import Batch, BuildContext
from pegboard.api.quant import ParamSpec
from pegboard.errors import UnsupportedError
from pegboard.nn.rope_config import RopeConfig
from pegboard.nn.weighted import Weighted

__all__ = ["Rope", "inverse_frequencies"]


def inverse_frequencies(config: RopeConfig, rotated: int) -> torch.Tensor:
    """Radians per token of each pair of features, ``float32 [rotated / 2]``.

    ``theta ** (-2 i / rotated)``; ``linear`` divides all of it by `factor` (Chen et al., "Position
    Interpolation", 2023); ``llama3`` see `_stretch_llama3`.
    """
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    frequencies = 1.0 / (config.theta**exponents)
    if config.kind == "linear":
        return frequencies / config.factor
    return _stretch_llama3(frequencies, config) if config.kind == "llama3" else frequencies


def _stretch_llama3(frequencies: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Long waves are stretched by `factor`, short ones kept, those between blended linearly.

    A wave is short if the original context holds at least `high_freq_factor` of its periods, long
    if it holds at most `low_freq_factor`. Source: the scaled rope of Meta's Llama 3.1 release.
    """
    periods = config.original_max_positions * frequencies / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    keep = ((periods - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * frequencies / config.factor + keep * frequencies


class Rope(Weighted):
    """Rotates ``x [T, heads, D]`` by the batch's positions; one module serves all layers.

    It holds a table of cosines and sines, ``float32 [positions, rotated]``, for `max_positions`
    positions or as many as the run needs. With `factors` the checkpoint brings one divisor per
    frequency (``rope_freqs.weight`` of GGUF files), which is a weight of this module.
    """

    def __init__(
        self,
        ctx: BuildContext,
        prefix: str,
        config: RopeConfig,
        head_size: int,
        max_positions: int,
        *,
        factors: bool = False,
    ) -> None:
        super().__init__(prefix)
        rotated = int(head_size * config.partial)
        if rotated < 2 or rotated % 2 or rotated > head_size:
            raise UnsupportedError(
                f"{prefix}: {rotated} of {head_size} features cannot be rotated in pairs"
            )
        self._rotate = ctx.ops["rope"]
        self._positions = ctx.max_positions or max_positions
        self._device = ctx.device
        self._frequencies = inverse_frequencies(config, rotated)
        self._factors = factors
        if not factors:
            self._tabulate(self._frequencies)

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        if not self._factors:
            return ()
        return ((0, ParamSpec("weight", tuple(self._frequencies.shape), "float32")),)

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        if self._factors:
            self._tabulate(self._frequencies / loaded["weight"][0].to("cpu"))

    def _tabulate(self, frequencies: torch.Tensor) -> None:
        """Angles are products in float32, as in the reference models, so that long positions agree
        with them.
        """
        positions = torch.arange(self._positions, dtype=torch.float32, device=self._device)
        angles = torch.outer(positions, frequencies.to(self._device))
        self.store("table", torch.cat((angles.cos(), angles.sin()), -1))

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        rotated: torch.Tensor = self._rotate(x, batch.positions, self.runtime["table"])
        return rotated
