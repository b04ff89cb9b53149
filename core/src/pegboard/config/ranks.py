"""What tensor parallelism asks of a model."""

from __future__ import annotations

from pegboard.api.model import ModelFacts, ModelFamily
from pegboard.errors import ConfigError, UnsupportedError

__all__ = ["check_ranks"]


def check_ranks(world: int, family: ModelFamily, facts: ModelFacts) -> None:
    """Raise `UnsupportedError` if the family cannot be shared out, `ConfigError` if its heads or
    its vocabulary cannot be among so many ranks; nothing is read or started yet."""
    if world == 1:
        return
    if not family.abilities.tensor_parallel:
        raise UnsupportedError(
            f"tensor_parallel_size={world} is not supported by model family {family.name!r}: "
            "it runs on one rank"
        )
    if facts.vocab_size < world:
        raise ConfigError(
            f"tensor_parallel_size={world} is not allowed: at most the vocabulary's size, "
            f"{facts.vocab_size}"
        )
    for slot in facts.kv_slots:
        if slot.spec is None:
            continue
        try:
            slot.spec.on_rank(world)
        except (ConfigError, UnsupportedError) as error:
            raise type(error)(f"tensor_parallel_size={world} is not allowed: {error}") from None
