"""Which tokeniser reads and writes the text of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.tokenizer import TextTokenizer, TokenizerClass, TokenizerContext
from pegboard.errors import (
    ConfigError,
    PegboardError,
    PluginError,
    SelectionError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["AUTO", "build_tokenizer", "find_tokenizer", "tokenizer_name"]

AUTO = "auto"
_MEMBERS = tuple(name for name in vars(TextTokenizer) if not name.startswith("_"))


def find_tokenizer(
    board: Board, path: str, own: Callable[[], TokenizerSpec], mode: str = AUTO
) -> TokenizerSpec:
    """The specification for the checkpoint at `path`.

    ``own()`` gives the checkpoint's. Where it has none (`UnsupportedError`), the registered kinds
    look for theirs. With another `mode`, the kind of that name looks first. Raises
    `MissingPluginError` for a kind that nobody registered, `ConfigError` if it finds nothing,
    `SelectionError` if several kinds find something, and what ``own()`` raises.
    """
    if mode != AUTO:
        chosen = _named(board, mode)
        if chosen.find is None:
            return own()
        spec = _look(chosen, path)
        if spec is None:
            raise ConfigError(
                f"tokenizer_mode={mode!r} is not allowed here: there is no tokeniser of this kind "
                f"in {path}"
            )
        return spec
    try:
        return own()
    except UnsupportedError:
        looking = [kind for kind in board.registry("tokenizer") if kind.find is not None]
        found = [(kind, spec) for kind in looking if (spec := _look(kind, path)) is not None]
        if len(found) > 1:
            names = ", ".join(repr(kind.name) for kind, _ in found)
            raise SelectionError(
                f"{path}: has tokenisers of several kinds: {names}; set tokenizer_mode"
            ) from None
        if not found:
            raise
        return found[0][1]


def build_tokenizer(board: Board, spec: TokenizerSpec, mode: str = AUTO) -> TextTokenizer:
    """The tokeniser that reads a specification: that of its kind, or of the name `mode`.

    Raises `MissingPluginError` if there is none, `PluginError` if it fails or makes something else.
    """
    wanted_by = spec.source if mode == AUTO else f"tokenizer_mode={mode!r}"
    name = tokenizer_name(spec, mode)
    chosen: TokenizerClass = board.require("tokenizer", name, wanted_by=wanted_by)
    made = _call(
        chosen,
        "build",
        chosen.build.load(),
        TokenizerContext(spec, **board.handed("tokenizer", chosen.name)),
    )
    missing = [name for name in _MEMBERS if not hasattr(made, name)]
    if missing:
        raise PluginError(
            f"tokenizer {chosen.name!r}: {chosen.build} made a {type(made).__name__}, which is no "
            f"tokeniser: it lacks {', '.join(missing)}"
        )
    tokenizer: TextTokenizer = made
    return tokenizer


def tokenizer_name(spec: TokenizerSpec, mode: str = AUTO) -> str:
    """Of the tokeniser that `build_tokenizer` takes."""
    return spec.kind if mode == AUTO else mode


def _named(board: Board, mode: str) -> TokenizerClass:
    found: TokenizerClass = board.require("tokenizer", mode, wanted_by=f"tokenizer_mode={mode!r}")
    return found


def _look(kind: TokenizerClass, path: str) -> TokenizerSpec | None:
    assert kind.find is not None
    spec = _call(kind, "find", kind.find.load(), path)
    if spec is not None and not isinstance(spec, TokenizerSpec):
        raise PluginError(
            f"tokenizer {kind.name!r}: {kind.find} must return a TokenizerSpec or None, it "
            f"returned a {type(spec).__name__}"
        )
    return spec


def _call(kind: TokenizerClass, what: str, function: Any, argument: Any) -> Any:
    try:
        return function(argument)
    except PegboardError:
        raise
    except Exception as error:
        raise PluginError(
            f"tokenizer {kind.name!r} failed to {what}: {type(error).__name__}: {error}"
        ) from error
