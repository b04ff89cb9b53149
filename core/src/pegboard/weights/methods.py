"""Which method owns a layer's weights: the plain one, or that of a quantisation."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from pegboard.api.checkpoint import PLAIN_TYPES, Checkpoint
from pegboard.api.quant import LayerMethod, LayerSpec, QuantContext, QuantFormat, Quantizer
from pegboard.errors import CheckpointError, ConfigError, UnsupportedError

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["MethodChooser", "method_chooser", "quantization_config"]


def quantization_config(raw: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The quantisation keys of a raw configuration, empty if there are none.

    Raises `CheckpointError` if they do not name a ``quant_method``.
    """
    keys = raw.get("quantization_config")
    if keys is None:
        return {}
    if not isinstance(keys, Mapping) or not isinstance(keys.get("quant_method"), str):
        raise CheckpointError(
            f"{path}: quantization_config={reprlib.repr(keys)} does not name a quant_method"
        )
    return keys


def method_chooser(
    board: Board,
    checkpoint: Checkpoint,
    *,
    dtype: str,
    platform_facts: Mapping[str, Any],
    quantization: str | None = None,
    plain: Callable[[LayerSpec], LayerMethod],
) -> MethodChooser:
    """The chooser for one model.

    Args:
        board: Where quantisations are registered.
        checkpoint: Its ``quantization_config`` names a method for the whole model.
        dtype: Compute dtype by torch name.
        platform_facts: ``DeviceRuntime.facts()``.
        quantization: What the user asked for: the name of a format or of a checkpoint method; None
        for what the
            checkpoint says.
        plain: Makes the method for layers whose tensors have plain types.

    Raises `MissingPluginError` if the method is not on the board, `ConfigError` if user and
    checkpoint disagree.
    """
    keys = quantization_config(checkpoint.config, checkpoint.path)
    whole = _whole_model_format(board, checkpoint.path, keys, quantization)
    context = QuantContext(dtype=dtype, platform=platform_facts, config=keys)
    return MethodChooser(board, checkpoint.path, context, whole, plain)


def _whole_model_format(
    board: Board, path: str, keys: Mapping[str, Any], quantization: str | None
) -> QuantFormat | None:
    """The format that the checkpoint or the user names for all layers, if any."""
    named: QuantFormat | None = None
    if keys:
        claim = f"method:{keys['quant_method']}"
        named = board.require("quant", claim, wanted_by=f"quantization_config of {path}")
    if quantization is None:
        return named
    claim = f"method:{quantization}"
    key = claim if claim in board.registry("quant") else quantization
    asked: QuantFormat = board.require("quant", key, wanted_by=f"quantization={quantization!r}")
    if named is not None and asked.name != named.name:
        raise ConfigError(
            f"quantization={quantization!r} is not allowed: {path} is quantised with "
            f"{keys['quant_method']!r}"
        )
    return asked


class MethodChooser:
    """Called with each layer while the model is built."""

    def __init__(
        self,
        board: Board,
        path: str,
        context: QuantContext,
        whole: QuantFormat | None,
        plain: Callable[[LayerSpec], LayerMethod],
    ) -> None:
        self._board = board
        self._path = path
        self._context = context
        self._whole = whole
        self._plain = plain
        self._quantizers: dict[str, Quantizer] = {}

    def __call__(self, layer: LayerSpec) -> LayerMethod:
        """The method for `layer`.

        Raises `MissingPluginError` naming the layer and what would provide its type,
        `UnsupportedError` if the format that claims the type cannot serve this layer.
        """
        if self._whole is not None and layer.kind in self._whole.covers:
            method = self._quantizer(self._whole).method(layer)
            if method is not None:
                return method
        claimed = self._format_of(layer)
        if claimed is None:
            return self._plain(layer)
        method = self._quantizer(claimed).method(layer) if claimed is not self._whole else None
        if method is None:
            raise UnsupportedError(
                f"layer {layer.prefix}: quantisation {claimed.name!r} gives no method for "
                f"{_stored(layer)}"
            )
        return method

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats that were asked for a method so far."""
        return tuple(self._quantizers)

    def _quantizer(self, chosen: QuantFormat) -> Quantizer:
        if chosen.name not in self._quantizers:
            context = attrs.evolve(self._context, **self._board.handed("quant", chosen.name))
            self._quantizers[chosen.name] = chosen.quantizer.load()(context)
        return self._quantizers[chosen.name]

    def _format_of(self, layer: LayerSpec) -> QuantFormat | None:
        """The format that claims the layer's stored types; None if all are plain."""
        formats: dict[str, QuantFormat] = {}
        for stored_type in sorted(_types(layer) - PLAIN_TYPES.keys()):
            found: QuantFormat = self._board.require(
                "quant",
                f"type:{stored_type}",
                wanted_by=f"layer {layer.prefix} of {self._path}, stored as {stored_type}",
            )
            formats[found.name] = found
        if len(formats) > 1:
            raise UnsupportedError(
                f"layer {layer.prefix}: its parts need several quantisations "
                f"({', '.join(sorted(formats))}), which one layer cannot have: {_stored(layer)}"
            )
        chosen = next(iter(formats.values()), None)
        if chosen is not None and layer.kind not in chosen.covers:
            raise UnsupportedError(
                f"layer {layer.prefix}: quantisation {chosen.name!r} does not cover layers of "
                f"kind {layer.kind!r}, "
                f"only {', '.join(chosen.covers)}: {_stored(layer)}"
            )
        return chosen


def _types(layer: LayerSpec) -> set[str]:
    return {source.stored_type for part in layer.sources for source in part}


def _stored(layer: LayerSpec) -> str:
    tensors = [source for part in layer.sources for source in part]
    return ", ".join(f"{t.name!r} ({t.stored_type})" for t in tensors[:5]) or "no stored tensor"
