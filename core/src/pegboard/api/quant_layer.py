"""Layers with weights, and the tensors that they load. Part of `pegboard.api.quant`."""

from __future__ import annotations

from typing import Literal

import attrs

from pegboard.errors import ConfigError

__all__ = ["LayerKind", "LayerSpec", "ParallelRole", "ParamSpec", "SourceTensor"]

LayerKind = Literal["linear", "embedding", "head", "experts"]


ParallelRole = Literal["replicated", "column", "row", "vocab"]


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
