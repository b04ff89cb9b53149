"""Log-probabilities of prompt tokens, chunk by chunk.

The query token at position p predicts the prompt token at p + 1, so a chunk that computes positions
``start`` to ``end - 1`` gives the entries of positions ``start + 1`` to ``end``: its last row
predicts the first token of the next chunk. Position 0 has none. A chunk that is computed again
after a preemption is reported again.
"""

from __future__ import annotations

import attrs
import torch

from pegboard.api.model import Batch, LanguageModel
from pegboard.api.step import PromptLogprobs, StepPlan
from pegboard.nn.transit import to_host
from pegboard.runner.slots import Slots
from pegboard.sampling.logprobs import LogprobBatch, raw_logprobs, take_logprobs

__all__ = ["PromptChunk", "score_prompts"]

_TILE_ELEMENTS = 1 << 23
"""Most logits that stand in memory at once (32 MiB in float32), however long the chunk is."""


@attrs.frozen(eq=False)
class PromptChunk:
    """What one step found out about one prompt, still on the device."""

    slot: int
    first: int
    """Position of the first entry."""
    tiles: tuple[LogprobBatch, ...]
    finite: torch.Tensor
    """bool []: all logits were finite numbers."""

    def fetched(self) -> PromptChunk:
        """Copies on the host, see `pegboard.nn.transit.to_host`."""
        tiles = tuple(tile.fetched() for tile in self.tiles)
        return attrs.evolve(self, tiles=tiles, finite=to_host(self.finite))

    def entries(self) -> PromptLogprobs:
        """Entries in order of position; waits for the device unless `fetched`."""
        entries = [entry for tile in self.tiles for entry in tile.entries()]
        return PromptLogprobs(first=self.first, entries=entries)


@attrs.frozen
class _Span:
    """Query rows of one chunk whose next token is a prompt token."""

    slot: int
    row: int
    """First of them in the step."""
    start: int
    """Its position."""
    count: int
    width: int


def score_prompts(
    model: LanguageModel, batch: Batch, hidden: torch.Tensor, plan: StepPlan, slots: Slots
) -> list[PromptChunk]:
    """Score the chunks of this step whose requests asked.

    ``hidden [T, …]`` is what the forward pass returned.
    """
    if not slots.prompts:
        return []
    return [_score(model, batch, hidden, span, slots) for span in _spans(plan, slots)]


def _spans(plan: StepPlan, slots: Slots) -> list[_Span]:
    spans, row = [], 0
    for slot, start, count in zip(plan.slots, plan.starts, plan.counts, strict=True):
        prompt = slots.prompts.get(slot)
        if prompt is not None:
            known = min(start + count, prompt.length - 1) - start
            if known > 0:
                spans.append(_Span(slot, row, start, known, prompt.width))
        row += count
    return spans


def _score(
    model: LanguageModel, batch: Batch, hidden: torch.Tensor, span: _Span, slots: Slots
) -> PromptChunk:
    tiles, finite = [], torch.ones((), dtype=torch.bool, device=hidden.device)
    step = max(1, _TILE_ELEMENTS // slots.sampling.vocab_size)
    for done in range(0, span.count, step):
        count = min(step, span.count - done)
        rows = torch.arange(span.row + done, span.row + done + count, device=hidden.device)
        logits = model.logits(hidden[rows], attrs.evolve(batch, logit_rows=rows))
        finite &= logits.amax(-1).isfinite().all()
        begin = span.start + done + 1
        targets = slots.tokens[span.slot, begin : begin + count].long()
        tiles.append(take_logprobs(raw_logprobs(logits), targets, (span.width,) * count))
    return PromptChunk(span.slot, span.start + 1, tuple(tiles), finite)
