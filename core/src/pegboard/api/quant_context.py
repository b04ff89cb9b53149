"""Who chooses the owners of weights, and from what. Part of `pegboard.api.quant`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.metrics import PluginMetrics

if TYPE_CHECKING:
    from pegboard.api.quant_layer import LayerSpec
    from pegboard.api.quant_method import LayerMethod


__all__ = ["QuantContext", "Quantizer"]


@attrs.frozen
class QuantContext:
    """What a quantizer knows: compute dtype by torch name, platform facts, the checkpoint's own
    quantisation keys."""

    dtype: str
    """Compute dtype, ``"float32"`` (exact arithmetic expected), ``"bfloat16"`` or ``"float16"``."""
    platform: Mapping[str, Any] = attrs.field(factory=dict)
    """`DeviceRuntime.facts()`."""
    config: Mapping[str, Any] = attrs.field(factory=dict)
    """``quantization_config`` of the checkpoint, empty if it has none."""
    settings: Any = None
    """The plugin's own, see `pegboard.api.hooks.Hooks.pegboard_settings`."""
    metrics: PluginMetrics = attrs.field(factory=PluginMetrics, eq=False, repr=False)
    """The plugin's own namespace of metrics."""


class Quantizer(Protocol):
    """Chooses a method per layer."""

    def method(self, layer: LayerSpec) -> LayerMethod | None:
        """The method for `layer` (an `ExpertsMethod` for one of kind ``"experts"``), or None to
        leave it to the plain one.

        Raises `UnsupportedError` naming the layer and the type if the layer is quantised in a way
        it cannot serve.
        """
        ...
