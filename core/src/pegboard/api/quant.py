"""Surface *quantisation*: number formats of stored weights and how to compute with them.

Called by: `pegboard.nn` while a model is built (`Quantizer.method`), by the weight loader
(`LinearMethod.parameters`,
`finalise`), and in every step (`apply`, `lookup`). All of it in the process that holds the device.

A layer has one weight owner, its method. A layer may be a stack of parts (q, k and v; gate and up)
and the parts may be stored in different types; the method sees the whole stack. All experts of a
mixture are one layer, of kind ``"experts"``, whose owner is an `ExpertsMethod`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.api.metrics import PluginMetrics
from pegboard.errors import ConfigError

if TYPE_CHECKING:
    import torch

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

LayerKind = Literal["linear", "embedding", "head", "experts"]
ParallelRole = Literal["replicated", "column", "row", "vocab"]


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


@attrs.frozen
class SourceTensor:
    """A stored tensor that will fill one part of a layer."""

    name: str
    stored_type: str
    shape: tuple[int, ...]


@attrs.frozen
class LayerSpec:
    """One layer with weights, before it is loaded."""

    prefix: str
    """Name in the model's own tree, e.g. ``"layers.3.attn.qkv"``."""
    kind: LayerKind
    in_features: int
    part_sizes: tuple[int, ...]
    """Output features of each part, over all ranks; rows of an embedding. Experts have three parts,
    gate, up and down; the inputs of down are the outputs of gate, not `in_features`."""
    role: ParallelRole = "replicated"
    rank: int = 0
    world: int = 1
    copies: tuple[int, ...] = ()
    """Per part, how many neighbouring ranks hold the same share of it; empty: one each."""
    experts: int = 0
    """How many experts the layer holds; 0 for a layer of another kind."""
    activation: str = ""
    """Of experts: the op ``<activation>_mul`` joins gate and up, e.g. ``"silu"``."""
    tied: bool = False
    """An embedding that is the output head too: `lookup` and `apply` will both be called."""
    sources: tuple[tuple[SourceTensor, ...], ...] = ()
    """Per part, every stored tensor of that part, e.g. weight and scale. Empty when weights are
    not loaded."""

    def outputs(self, part: int) -> int:
        """Output features (rows of an embedding) of a part on this rank. Raises `ConfigError` if
        they cannot be divided."""
        whole = ParamSpec("weight", (self.part_sizes[part],), "", 0)
        if self.role not in ("column", "vocab"):
            return self.part_sizes[part]
        start, stop = self.shared(part, whole).span(self.rank, self.world)
        return stop - start

    def shared(self, part: int, spec: ParamSpec) -> ParamSpec:
        """`spec`, which a method declares for a part, with what this layer knows of how its shares
        fall to the ranks."""
        if spec.shard_axis is None or self.world == 1:
            return spec
        copies = self.copies[part] if self.copies else 1
        return attrs.evolve(spec, copies=copies, uneven=self.role == "vocab")


@attrs.frozen
class ParamSpec:
    """One tensor per part that the loader delivers."""

    name: str
    """Last component of the stored name, e.g. ``"weight"``."""
    shape: tuple[int, ...]
    """Whole, not sharded; a block type counts bytes on its last axis."""
    dtype: str
    """torch name; the loader converts plain types to it and refuses anything else."""
    shard_axis: int | None = None
    granule: int = 1
    """A shard starts and ends at a multiple of this many elements of `shard_axis`."""
    copies: int = 1
    """How many neighbouring ranks hold the same shard. The layer says so (`LayerSpec.shared`), not
    the method."""
    uneven: bool = False
    """Shards may differ by one granule, the larger ones first. Said by the layer, too."""
    stacked: bool = False
    """Axis 0 counts experts. A checkpoint has one tensor of this shape, or one for each expert
    without that axis, which the loader puts in its place."""

    def span(self, rank: int, world: int) -> tuple[int, int]:
        """``(start, stop)`` of what a rank holds of `shard_axis`, of axis 0 if every rank holds
        everything. Raises `ConfigError` if the axis cannot be divided."""
        axis = self.shard_axis
        if axis is None or world == 1:
            return 0, self.shape[axis or 0] if self.shape else 1
        size, holders = self.shape[axis], world // self.copies
        share, rest = divmod(-(-size // self.granule), holders)
        if share == 0 or ((rest or size % self.granule) and not self.uneven):
            raise ConfigError(
                f"axis {axis} of size {size}, in units of {self.granule}, cannot be divided among "
                f"{holders} ranks"
            )
        place = rank // self.copies
        borders = (n * share + min(n, rest) for n in (place, place + 1))
        start, stop = (min(border * self.granule, size) for border in borders)
        return start, stop


class LinearMethod(Protocol):
    """Computes with one layer's weights.

    `Params` are the method's own runtime values: tensors or opaque handles by name. A layer holds
    them and hands them back in every call; the method itself keeps no tensors.
    """

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """Tensors that part number `part` needs."""
        ...

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Turn loaded tensors (one per part and name, on the device, this rank's shard) into
        runtime parameters.

        May consume `loaded`. With `runtime` given (a weight update) the existing parameters are
        written in place, so that captured graphs stay valid.
        """
        ...

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        """``x [rows, in] -> [rows, sum(part_sizes)]`` in the dtype of `x`, without bias.

        `x` has the compute dtype, or is float32 where a `lookup` gave that. Logits (of a head or a
        tied embedding) may be float32 whatever the dtype of `x`.
        """
        ...

    def lookup(self, params: Mapping[str, Any], ids: torch.Tensor) -> torch.Tensor:
        """Rows of an embedding: ``ids [n] -> [n, in]`` in the compute dtype.

        May be float32 on a CPU, where many processors have no units for narrower types: all
        activations of the step are float32 then, and every layer gives what it is given.
        """
        ...

    def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
        """The whole weight ``float32 [sum(part_sizes), in]``: the oracle of `apply` and
        `lookup`."""
        ...


class ExpertsMethod(Protocol):
    """Computes with the weights of all experts of one mixture: parts gate, up and down.

    As with `LinearMethod`, the layer holds the parameters and hands them back in every call.
    """

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        """Tensors that part number `part` needs, those of experts `ParamSpec.stacked`."""
        ...

    def allocate(self, device: torch.device) -> Mapping[str, Any]:
        """Runtime parameters before the first load, their contents undefined.

        The loader fills them tensor by tensor through `place`, so that a mixture is never held
        twice. May be empty if nothing can be filled that way.
        """
        ...

    def place(self, params: Mapping[str, Any], part: int, name: str) -> torch.Tensor | None:
        """Where among the runtime parameters the loader may write tensor `name` of a part: memory
        of the shape (this rank's shard) and dtype of its `ParamSpec`. None: nowhere, so that it is
        delivered in memory of its own."""
        ...

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        """Make runtime parameters complete.

        As `LinearMethod.finalise`; `runtime` is also given in a first load through `place`, what
        lies in its place already is the same memory in `loaded`.
        """
        ...

    def apply(
        self,
        params: Mapping[str, Any],
        x: torch.Tensor,
        weights: torch.Tensor,
        ids: torch.Tensor,
    ) -> torch.Tensor:
        """The weighted sum of what the chosen experts make of each row: ``x [rows, in] -> [rows,
        in]`` in the dtype of `x`.

        ``weights float32 [rows, k]``, ``ids int32 [rows, k]`` from 0 to ``experts - 1``, as the op
        ``moe_route`` gives them.
        """
        ...

    def dequantise(self, params: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """``gate_up float32 [experts, 2 inner, in]`` and ``down float32 [experts, in, inner]``: the
        oracle of `apply`, with the op ``moe_experts``."""
        ...


LayerMethod = LinearMethod | ExpertsMethod


class Quantizer(Protocol):
    """Chooses a method per layer."""

    def method(self, layer: LayerSpec) -> LayerMethod | None:
        """The method for `layer` (an `ExpertsMethod` for one of kind ``"experts"``), or None to
        leave it to the plain one.

        Raises `UnsupportedError` naming the layer and the type if the layer is quantised in a way
        it cannot serve.
        """
        ...
