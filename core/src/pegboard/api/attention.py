"""Surface *attention*: kernels over the paged KV cache, those of recurrent layers included.

Called by: the runner, in the process that holds the device. `plan` once per step and group, then
`forward` once per layer with what `plan` returned. A backend may not keep state between steps
other than scratch memory.

What a kernel is given depends on the kind of its group:

=======================  ====================  ===================  =============================
kinds                    step                  layer                inputs
=======================  ====================  ===================  =============================
full, sliding, chunked   `AttentionStep`       `AttentionLayer`     `AttentionInputs`
encoder-only             `AttentionStep`       `AttentionLayer`     `AttentionInputs`
latent                   `AttentionStep`       `AttentionLayer`     `LatentInputs`
cross                    `AttentionStep`       `AttentionLayer`     `CrossInputs`
recurrent                `RecurrentStep`       of the mixer         of the mixer
=======================  ====================  ===================  =============================

The last row is in `pegboard.api.recurrent`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.errors import PluginError

if TYPE_CHECKING:
    from pegboard.api.attention_kernel import (
        AttentionContext,
        AttentionKernel,
        PromptsKernel,
        WarmingKernel,
    )
    from pegboard.api.attention_step import (
        AttentionInputs,
        AttentionLayer,
        AttentionStep,
        CrossInputs,
        LatentInputs,
    )

__all__ = [
    "AttentionBackend",
    "AttentionContext",
    "AttentionInputs",
    "AttentionKernel",
    "AttentionLayer",
    "AttentionStep",
    "CrossInputs",
    "LatentInputs",
    "PromptsKernel",
    "WarmingKernel",
]

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "attention_kernel", "attention_step")


@attrs.frozen
class AttentionBackend:
    """Descriptor. `kernel` refers to ``(ctx: AttentionContext) -> AttentionKernel``.

    Empty tuples mean "any". Selection tries backends by falling `priority` and collects, for its
    error message, the reason why each one does not serve.
    """

    name: str
    kernel: LazyRef = attrs.field(converter=lazy_ref)
    platforms: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ("full",)
    dtypes: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    block_sizes: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()
    """Of ``sinks``, ``soft_cap``, ``non_causal``, ``tree_mask``, ``shared_prefix``,
    ``batch_invariant``, ``state_borders``."""
    mixers: tuple[str, ...] = ()
    """Of the kind ``recurrent``: which recurrences, see `pegboard.api.recurrent`."""
    capture: Literal["whole", "piecewise", "none"] = "none"
    """Into which kind of device graph its calls may be recorded."""
    fused_kv_write: bool = True
    """`forward` writes the new keys and values itself. If False they are in the cache already when
    it is called: the core stored them, joined with their rotation where a platform has the op."""
    rows: Literal["all", "prompts"] = "all"
    """``prompts``: it serves only rows with several query tokens, in steps that are not captured.
    The core gives it a step of those rows alone, and the others to the best backend that serves
    all; neither may write the cache itself then (`fused_kv_write` is False). Its kernel is a
    `PromptsKernel`."""
    warms_up: bool = False
    """Its kernel is a `WarmingKernel`."""
    priority: int = 0

    def __attrs_post_init__(self) -> None:
        if self.rows == "prompts" and self.fused_kv_write:
            raise PluginError(
                f"attention backend {self.name!r}: rows='prompts' needs fused_kv_write=False, "
                "for the other rows of a group are served by another backend"
            )

    def claims(self) -> tuple[str, ...]:
        return ()
