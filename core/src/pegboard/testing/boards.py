"""Boards for tests: what is installed, with or without something beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.descriptor import Descriptor
from pegboard.api.tokenizer import TextTokenizer, TokenizerClass
from pegboard.config.tokenizer import build_tokenizer
from pegboard.plugins import VARIABLE, Board, PluginRecord, load_plugins
from pegboard.testing.checkpoints import ByteVocabulary

__all__ = [
    "Board",
    "PluginRecord",
    "board_in",
    "board_of",
    "board_with",
    "built_tokenizer",
    "byte_tokenizer",
    "own_board",
    "with_settings",
]


def board_with(surface: str, *descriptors: Descriptor, settings: Any = None) -> Board:
    """What is installed, and these descriptors; one that is installed must be the same.

    `settings`, an instance of the class that the plugin declares, take the place of those that it
    has without ``plugin_config``.
    """
    board = load_plugins()
    missing = []
    for descriptor in descriptors:
        found = board.registry(surface).get(descriptor.name)
        if found is None:
            missing.append((surface, descriptor))
        else:
            assert found == descriptor, f"the installed {surface} {descriptor.name!r} is another"
    board = load_plugins(extra=missing) if missing else board
    if settings is None:
        return board
    return with_settings(board, surface, [one.name for one in descriptors], settings)


def with_settings(board: Board, surface: str, names: Sequence[str], settings: Any) -> Board:
    """A board on which the plugins that registered these names have these `settings`."""
    for name in names:
        own = board.settings(surface, name)
        assert own is None or isinstance(settings, type(own)), (
            f"settings must be an instance of {type(own).__name__}, which the plugin declares, "
            f"not {settings!r}"
        )
    owners = {board.registry(surface).provenance(name) for name in names}
    return board.giving(dict.fromkeys(owners, settings))


def board_of(*plugins: str) -> Board:
    """With these plugins alone, by id; nothing else is imported."""
    environ: Mapping[str, str] = {VARIABLE: ",".join(plugins)}
    return load_plugins(environ=environ)


def board_in(folder: Path) -> Board:
    """With the plugins that are installed in this folder alone."""
    return load_plugins(environ={}, search_path=[str(folder)])


def own_board(*extra: tuple[str, Descriptor]) -> Board:
    """Without any plugin: what the core itself brings, and these (surface, descriptor) pairs."""
    return load_plugins(environ={VARIABLE: ""}, extra=extra)


@cache
def byte_tokenizer() -> TextTokenizer:
    """The tokeniser of the small models of `pegboard.testing.checkpoints`: the token of a byte is
    that byte and 3, and 1 is the end of sequence."""
    return build_tokenizer(own_board(), ByteVocabulary().spec())


def built_tokenizer(
    tokenizer: TokenizerClass, spec: TokenizerSpec, settings: Any = None
) -> TextTokenizer:
    """The tokeniser of a specification, as the engine builds it; `settings` as in `board_with`."""
    board = board_with("tokenizer", tokenizer, settings=settings)
    return build_tokenizer(board, spec, tokenizer.name)
