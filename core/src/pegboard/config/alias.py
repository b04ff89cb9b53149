"""A checkpoint whose architecture has another name for a known one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.alias import ModelAlias
from pegboard.api.checkpoint import Checkpoint, StoredTensor, TokenizerSpec
from pegboard.api.model import ModelFamily
from pegboard.errors import DuplicateError, PegboardError, PluginError

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["AliasedCheckpoint", "resolve_alias"]


@attrs.frozen(eq=False)
class AliasedCheckpoint:
    """`api.checkpoint.Checkpoint` with the configuration and architecture of a known one."""

    inner: Checkpoint
    config: Mapping[str, Any] = attrs.field(repr=False)
    architectures: tuple[str, ...]
    alias: str
    """Name of the alias."""

    @property
    def path(self) -> str:
        return self.inner.path

    @property
    def kind(self) -> str:
        return self.inner.kind

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self.inner.tensors

    @property
    def chat_templates(self) -> Mapping[str, str]:
        return self.inner.chat_templates

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        return self.inner.generation_defaults

    def tokenizer(self) -> TokenizerSpec:
        return self.inner.tokenizer()

    def close(self) -> None:
        self.inner.close()


def resolve_alias(board: Board, checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint itself, or as the alias of one of its architectures says.

    Raises `DuplicateError` if a family claims what an alias names, `MissingPluginError` if nobody
    has what the alias leads to, `PluginError` if its rewriting fails.
    """
    families, aliases = board.registry("model"), board.registry("alias")
    for name in checkpoint.architectures:
        key = f"{checkpoint.kind}:{name}"
        alias = aliases.get(key)
        if alias is None and key in families:
            return checkpoint
        if alias is not None:
            if key in families:
                raise DuplicateError(_both(board, key))
            return _rewritten(board, alias, checkpoint)
    return checkpoint


def _both(board: Board, key: str) -> str:
    family, alias = board.provenance("model", key), board.provenance("alias", key)
    return (
        f"architecture {key!r} belongs to a model family of {family.distribution} "
        f"{family.version} and to an alias of {alias.distribution} {alias.version}; "
        f"{board.ways_out((('model', key), ('alias', key)))}"
    )


def _rewritten(board: Board, alias: ModelAlias, checkpoint: Checkpoint) -> Checkpoint:
    architecture = _architecture(board, alias, checkpoint)
    config: Any = checkpoint.config
    if alias.config is not None:
        try:
            config = alias.config.load()(config)
        except PegboardError:
            raise
        except Exception as error:
            raise PluginError(
                f"{checkpoint.path}: alias {alias.name!r} cannot rewrite the configuration: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(config, Mapping):
            raise PluginError(
                f"alias {alias.name!r}: {alias.config} must return a mapping, it returned a "
                f"{type(config).__name__}"
            )
    return AliasedCheckpoint(checkpoint, config, (architecture,), alias.name)


def _architecture(board: Board, alias: ModelAlias, checkpoint: Checkpoint) -> str:
    """What the alias leads to."""
    families = board.registry("model")
    wanted = f"alias {alias.name!r}, which {checkpoint.path} needs"
    if f"{alias.kind}:{alias.of}" in families:
        return alias.of
    named: ModelFamily | None = families.get(alias.of)
    if named is None:
        key = alias.of if alias.of.islower() else f"{alias.kind}:{alias.of}"
        raise board.absence("model", key, wanted_by=wanted)
    found = named.architectures.get(alias.kind, ())
    if not found:
        raise PluginError(
            f"alias {alias.name!r}: model family {alias.of!r} has no architecture in checkpoints "
            f"of kind {alias.kind!r}"
        )
    return found[0]
