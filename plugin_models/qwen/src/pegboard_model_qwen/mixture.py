"""Reading which layers of a ``config.json`` are mixtures of experts, and of what kind. No torch."""

from __future__ import annotations

from pegboard.nn import ConfigReader
from pegboard_model_qwen.settings import Mixture

__all__ = ["hf_mixture"]

COUNTS = ("num_experts", "num_local_experts")
"""Names of the number of experts, the second as newer files have it."""


def hf_mixture(
    read: ConfigReader, layers: int, *, mixture: bool, shared: bool
) -> tuple[Mixture | None, tuple[bool, ...]]:
    """The experts, and per layer whether it has some.

    `mixture`: the architecture has experts; `shared`: one that every token passes, too. Raises
    `UnsupportedError` for experts in an architecture without.
    """
    if not mixture:
        read.refuse_unless(dict.fromkeys(COUNTS, (0,)))
        return None, (False,) * layers
    return (
        Mixture(
            experts=_count(read),
            top_k=read.integer("num_experts_per_tok"),
            inner_size=read.integer("moe_intermediate_size"),
            renormalise=read.flag("norm_topk_prob", False),
            shared_size=read.integer("shared_expert_intermediate_size") if shared else 0,
        ),
        _sparse(read, layers),
    )


def _count(read: ConfigReader) -> int:
    older, newer = COUNTS
    count = read.integer(newer, None)
    if count is None:
        return int(read.integer(older))
    if read.integer(older, count) != count:
        raise read.bad(older, read.get(older), f"{newer}={count}, as the file says too")
    return int(count)


def _sparse(read: ConfigReader, layers: int) -> tuple[bool, ...]:
    """Every so manieth layer has experts, except for those that are listed as dense."""
    step = read.integer("decoder_sparse_step", 1)
    dense = read.get("mlp_only_layers", [])
    listed = isinstance(dense, list) and all(type(layer) is int for layer in dense)
    if not listed:
        raise read.bad("mlp_only_layers", dense, "a list of layer numbers")
    return tuple((layer + 1) % step == 0 and layer not in dense for layer in range(layers))
