"""The plain kernel of the mixer ``gated-linear``: the oracle of faster ones, for any device."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
import torch.nn.functional as F

from pegboard.api.attention import AttentionContext
from pegboard.api.kv import KVTensors
from pegboard.api.recurrent import GatedLinearInputs, GatedLinearLayer, RecurrentStep
from pegboard.nn.scan import causal_conv, scan_chunked, scan_stepwise

__all__ = ["PlainGatedLinear"]


@attrs.frozen(eq=False)
class _Row:
    """A row of several tokens."""

    row: int
    begin: int
    """Its first token in the step."""
    stops: Sequence[int]
    """After how many of its tokens a state is stored, the last one after all of them."""
    blocks: torch.Tensor
    """int64, one for each of `stops`."""


@attrs.frozen(eq=False)
class _Plan:
    """A step, sorted: rows of one token go together, the others alone."""

    step: RecurrentStep
    single_rows: torch.Tensor
    """int64: rows of one token."""
    single_tokens: torch.Tensor
    """int64: their tokens in the step."""
    rows: tuple[_Row, ...]


@attrs.frozen(eq=False)
class _Past:
    """The states before the step, of all rows: zeros where a request begins."""

    conv: torch.Tensor
    """[R, width - 1, channels]"""
    memory: torch.Tensor
    """[R, heads, key size, value size]"""


@attrs.frozen(eq=False)
class _Mixed:
    """Tokens after the convolution, in float32."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class PlainGatedLinear:
    """See `pegboard.api.recurrent.GatedLinearInputs` for what it computes.

    Sums and states are float32 inside; a state is rounded to its dtype when it is stored.
    """

    def __init__(self, ctx: AttentionContext) -> None:
        self._device = ctx.device

    def plan(self, step: RecurrentStep) -> _Plan:
        rows, singles, tokens = [], [], []
        begin = passed = 0
        for row, count in enumerate(step.query_lens):
            borders = step.borders[row]
            if count == 1:
                singles.append(row)
                tokens.append(begin)
            else:
                inside = step.border_blocks[passed : passed + len(borders)]
                blocks = torch.cat((inside, step.writes[row : row + 1]))
                rows.append(_Row(row, begin, [*borders, count], blocks))
            begin += count
            passed += len(borders)
        index = torch.tensor([singles, tokens], dtype=torch.int64).to(self._device)
        return _Plan(step, index[0], index[1], tuple(rows))

    def forward(
        self, layer: GatedLinearLayer, inputs: GatedLinearInputs, kv: KVTensors, metadata: _Plan
    ) -> torch.Tensor:
        """``[T, heads, value_size]`` in the dtype of ``inputs.mixed``; stores the states."""
        states = kv.states
        past = _Past(
            _recall(states["conv"], metadata.step), _recall(states["memory"], metadata.step)
        )
        out = inputs.mixed.new_empty(len(inputs.mixed), layer.heads, layer.value_size)
        call = _Call(layer, inputs, past, states["conv"], states["memory"], out)
        if len(metadata.single_rows):
            call.advance_singles(metadata)
        for row in metadata.rows:
            call.advance_row(row)
        return out


def _recall(states: torch.Tensor, step: RecurrentStep) -> torch.Tensor:
    """The states that the rows go on from, float32 ``[R, ...]``."""
    begun = step.has_state_device.view(-1, *[1] * (states.ndim - 1))
    return torch.where(begun, states[step.reads].float(), 0.0)


@attrs.frozen(eq=False)
class _Call:
    """One layer's call."""

    layer: GatedLinearLayer
    inputs: GatedLinearInputs
    past: _Past
    conv: torch.Tensor
    memory: torch.Tensor
    out: torch.Tensor

    def advance_singles(self, plan: _Plan) -> None:
        """All rows of one token together."""
        rows, tokens = plan.single_rows, plan.single_tokens
        x = self.inputs.mixed[tokens].float().unsqueeze(1)
        past = self.past.conv[rows]
        mixed = self._mix(x, past)
        decay = self.inputs.log_decay[tokens].unsqueeze(1)
        y, memory = scan_stepwise(
            mixed.query, mixed.key, mixed.value, decay, self.past.memory[rows]
        )
        self.out[tokens] = y.squeeze(1).to(self.out.dtype)
        blocks = plan.step.writes[rows]
        self.conv[blocks] = torch.cat((past, x), 1)[:, 1:].to(self.conv.dtype)
        self.memory[blocks] = memory.to(self.memory.dtype)

    def advance_row(self, row: _Row) -> None:
        """One row of several tokens, piece by piece between the states that are stored."""
        tokens = slice(row.begin, row.begin + row.stops[-1])
        x, past = self.inputs.mixed[tokens].float(), self.past.conv[row.row]
        mixed, decay = self._mix(x, past), self.inputs.log_decay[tokens]
        window, memory, first = torch.cat((past, x)), self.past.memory[row.row], 0
        for number, stop in enumerate(row.stops):
            part = slice(first, stop)
            y, memory = scan_chunked(
                mixed.query[part], mixed.key[part], mixed.value[part], decay[part], memory
            )
            self.out[tokens][part] = y.to(self.out.dtype)
            block = row.blocks[number : number + 1]
            kept = window[stop : stop + len(past)]
            self.conv.index_copy_(0, block, kept.to(self.conv.dtype).unsqueeze(0))
            self.memory.index_copy_(0, block, memory.to(self.memory.dtype).unsqueeze(0))
            first = stop

    def _mix(self, x: torch.Tensor, past: torch.Tensor) -> _Mixed:
        """Convolve, activate, and cut into queries, keys and values by head."""
        layer = self.layer
        mixed = F.silu(causal_conv(x, past, self.inputs.conv_weight.float()))
        keys = layer.heads * layer.key_size
        query, key, value = mixed.split((keys, keys, layer.heads * layer.value_size), -1)
        heads = (layer.heads, -1)
        return _Mixed(
            query.unflatten(-1, heads), key.unflatten(-1, heads), value.unflatten(-1, heads)
        )
