"""Boards for tests: what is installed, with or without something beside it."""

from __future__ import annotations

from collections.abc import Mapping

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.descriptor import Descriptor
from pegboard.api.tokenizer import TextTokenizer, TokenizerClass
from pegboard.config.tokenizer import build_tokenizer
from pegboard.plugins import VARIABLE, Board, PluginRecord, load_plugins

__all__ = [
    "Board",
    "PluginRecord",
    "board_of",
    "board_with",
    "built_tokenizer",
    "own_board",
]


def board_with(surface: str, *descriptors: Descriptor) -> Board:
    """What is installed, and these descriptors; one that is installed must be the same."""
    board = load_plugins()
    missing = []
    for descriptor in descriptors:
        found = board.registry(surface).get(descriptor.name)
        if found is None:
            missing.append((surface, descriptor))
        else:
            assert found == descriptor, f"the installed {surface} {descriptor.name!r} is another"
    return load_plugins(extra=missing) if missing else board


def board_of(*plugins: str) -> Board:
    """With these plugins alone, by id; nothing else is imported."""
    environ: Mapping[str, str] = {VARIABLE: ",".join(plugins)}
    return load_plugins(environ=environ)


def own_board() -> Board:
    """Without any plugin: what the core itself brings."""
    return board_of()


def built_tokenizer(tokenizer: TokenizerClass, spec: TokenizerSpec) -> TextTokenizer:
    """The tokeniser of a specification, as the engine builds it."""
    return build_tokenizer(board_with("tokenizer", tokenizer), spec, tokenizer.name)
