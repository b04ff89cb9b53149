"""Surface *quantisation*: number formats of stored weights and how to compute with them.

Called by: `pegboard.nn` while a model is built (`Quantizer.method`), by the weight loader
(`LinearMethod.parameters`,
`finalise`), and in every step (`apply`, `lookup`). All of it in the process that holds the device.

A layer has one weight owner, its method. A layer may be a stack of parts (q, k and v; gate and up)
and the parts may be stored in different types; the method sees the whole stack. All experts of a
mixture are one layer, of kind ``"experts"``, whose owner is an `ExpertsMethod`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.quant_context import QuantContext, Quantizer
    from pegboard.api.quant_layer import LayerKind, LayerSpec, ParallelRole, ParamSpec, SourceTensor
    from pegboard.api.quant_method import ExpertsMethod, LayerMethod, LinearMethod

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

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "quant_layer", "quant_method", "quant_context")


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
