"""The ``scripted`` family: the next token is a function of the position alone."""

from __future__ import annotations

import torch

from pegboard.api.attention import AttentionInputs
from pegboard.api.model import Batch, BuildContext
from pegboard.nn import Attention, Embedding
from pegboard.testing.scripted_config import ScriptedConfig

__all__ = ["ScriptedModel", "build"]


class ScriptedModel(torch.nn.Module):
    """Writes zeros into the cache like any model would, and says its lines."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.config: ScriptedConfig = ctx.config
        self.embed = Embedding(ctx, "embed", self.config.vocab_size, 8)
        self.attention = Attention(ctx, "0.self", 1, 1, 8)
        script = torch.tensor(self.config.script, dtype=torch.int64, device=ctx.device)
        self.register_buffer("script", script, persistent=False)

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        """``[T, 8]``: the position in the first feature, zeros elsewhere."""
        silent = self.embed(batch.ids, batch).mul(0.0).unsqueeze(1)
        attended = self.attention(AttentionInputs(silent, silent, silent), batch).squeeze(1)
        hidden: torch.Tensor = attended.to(torch.float32).mul(0.0)
        hidden[:, 0] = batch.positions.to(torch.float32)
        return hidden

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``[L, 8] -> [L, vocab]``: `strength` for the scripted token, 0 for all others."""
        lines = hidden[:, 0].to(torch.int64) - self.config.offset
        inside = (lines >= 0) & (lines < len(self.config.script))
        spoken = self.get_buffer("script")[lines.clamp(0, len(self.config.script) - 1)]
        chosen = torch.where(inside, spoken, self.config.eos_token_ids[0])
        scores = hidden.new_zeros(len(hidden), self.config.vocab_size)
        scores.scatter_(1, chosen.unsqueeze(1), self.config.strength)
        return scores


def build(ctx: BuildContext) -> ScriptedModel:
    """Entry of the family's descriptor."""
    return ScriptedModel(ctx)
