"""Surface *quantisation*: number formats of stored weights and how to compute with them.

Called by: `pegboard.nn` while a model is built (`Quantizer.method`), by the weight loader
(`LinearMethod.parameters`,
`finalise`), and in every step (`apply`, `lookup`). All of it in the process that holds the device.

A layer has one weight owner, its method. A layer may be a stack of parts (q, k and v; gate and up)
and the parts may be stored in different types; the method sees the whole stack. All experts of a
mixture are one layer, of kind ``"experts"``, whose owner is an `ExpertsMethod`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics
from pegboard.api.quant_layer import LayerKind, LayerSpec, ParallelRole, ParamSpec, SourceTensor
from pegboard.api.quant_method import ExpertsMethod, LayerMethod, LinearMethod

if TYPE_CHECKING:
    pass

__all__ = [
    "ExpertsMethod",
    "LayerKind",
    "LayerMethod",
    "LayerSpec",
    "LinearMethod",
    "ParallelRole",
    "ParamSpec",
    "QuantContext",
    "QuantFormat",
    "Quantizer",
    "SourceTensor",
]


@attrs.frozen
class QuantFormat:
    """Descriptor of a quantisation.

    `quantizer` refers to ``(ctx: QuantContext) -> Quantizer``. `methods` are the names that a
    checkpoint's
    ``quantization_config.quant_method`` may carry, `stored_types` the tensor types that it
    computes with.
    """

    name: str
    quantizer: LazyRef = attrs.field(converter=lazy_ref)
    methods: tuple[str, ...] = ()
    stored_types: tuple[str, ...] = ()
    covers: tuple[LayerKind, ...] = ("linear",)

    def claims(self) -> tuple[str, ...]:
        return (*(f"method:{m}" for m in self.methods), *(f"type:{t}" for t in self.stored_types))


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
