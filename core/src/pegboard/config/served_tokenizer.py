"""The tokeniser that an engine serves with: its model's, or the one that ``tokenizer`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.tokenizer import TextTokenizer
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.config.sources import open_tokenizer
from pegboard.config.tokenizer import build_tokenizer

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["served_spec", "served_tokenizer"]


def served_spec(board: Board, config: EngineConfig, model: ResolvedModel) -> TokenizerSpec | None:
    """The specification; None if no tokeniser is wanted or there is none. Raises what
    `open_tokenizer` raises."""
    if config.tokenizer is not None:
        return open_tokenizer(board, config.tokenizer, config.tokenizer_mode)
    return model.tokenizer


def served_tokenizer(
    board: Board, config: EngineConfig, model: ResolvedModel
) -> TextTokenizer | None:
    """The tokeniser itself, newly built. Raises what `build_tokenizer` raises, too."""
    spec = served_spec(board, config, model)
    return None if spec is None else build_tokenizer(board, spec, config.tokenizer_mode)
