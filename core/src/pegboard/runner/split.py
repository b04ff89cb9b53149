"""A step divided between two backends: one for prompts, one for everything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.attention import (
    AttentionInputs,
    AttentionKernel,
    AttentionLayer,
    AttentionStep,
    PromptsKernel,
)
from pegboard.api.kv import KVLayout, KVSpec, KVTensors
from pegboard.nn.transit import send

__all__ = ["SplitKernel"]


@attrs.frozen(eq=False)
class _Part:
    """The rows of a step that one kernel serves."""

    kernel: AttentionKernel
    metadata: Any
    tokens: slice | torch.Tensor
    """Their query tokens: a run, or places int64 [T]."""


class SplitKernel:
    """`AttentionKernel` of two others. Both read keys and values that are stored already."""

    def __init__(self, prompts: PromptsKernel, rest: AttentionKernel) -> None:
        """`prompts` gets the rows of several query tokens that it wants, `rest` the others and
        every captured step."""
        self._prompts = prompts
        self._rest = rest

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        """Those of both, in the order of `rest`, which serves most steps."""
        usable = set(self._prompts.layouts(spec))
        return tuple(layout for layout in self._rest.layouts(spec) if layout in usable)

    def plan(self, step: AttentionStep) -> tuple[_Part, ...]:
        lens = zip(step.query_lens, step.kv_lens, strict=True)
        chosen = [
            not step.captured and count > 1 and self._prompts.wants(count, length)
            for count, length in lens
        ]
        if not any(chosen) or all(chosen):
            kernel = self._prompts if any(chosen) else self._rest
            return (_Part(kernel, kernel.plan(step), slice(None)),)
        flags = np.array(chosen)
        return tuple(
            self._part(kernel, step, np.flatnonzero(rows))
            for kernel, rows in ((self._rest, ~flags), (self._prompts, flags))
        )

    def forward(
        self,
        layer: AttentionLayer,
        inputs: AttentionInputs,
        kv: KVTensors,
        metadata: Sequence[_Part],
    ) -> torch.Tensor:
        if len(metadata) == 1:
            (part,) = metadata
            return part.kernel.forward(layer, inputs, kv, part.metadata)
        out = torch.empty(inputs.query.shape, dtype=inputs.query.dtype, device=inputs.query.device)
        for part in metadata:
            own = AttentionInputs(
                inputs.query[part.tokens], inputs.key[part.tokens], inputs.value[part.tokens]
            )
            out[part.tokens] = part.kernel.forward(layer, own, kv, part.metadata)
        return out

    @staticmethod
    def _part(kernel: AttentionKernel, step: AttentionStep, rows: np.ndarray[Any, Any]) -> _Part:
        counts = np.asarray(step.query_lens, np.int64)
        begins = counts.cumsum() - counts
        together = int(rows[-1]) - int(rows[0]) + 1 == len(rows)
        lens = counts[rows]
        bounds = np.concatenate((np.zeros(1, np.int64), lens.cumsum())).astype(np.int32)
        device = step.block_table.device
        if together:
            first, total = int(begins[rows[0]]), int(bounds[-1])
            tokens: slice | torch.Tensor = slice(first, first + total)
            chosen: slice | torch.Tensor = slice(int(rows[0]), int(rows[-1]) + 1)
            (starts,) = send(device, bounds)
        else:
            places = np.concatenate(
                [np.arange(begins[row], begins[row] + counts[row]) for row in rows]
            )
            starts, tokens, chosen = send(device, bounds, places, rows)
        own = AttentionStep(
            query_lens=lens.tolist(),
            kv_lens=[step.kv_lens[row] for row in rows],
            block_lists=[step.block_lists[row] for row in rows] if step.block_lists else (),
            query_starts=starts,
            kv_lens_device=step.kv_lens_device[chosen],
            block_table=step.block_table[chosen],
            slots=step.slots[tokens],
            common_prefix=step.common_prefix,
            common_prefix_device=step.common_prefix_device,
        )
        return _Part(kernel, kernel.plan(own), tokens)
