"""Model families for tests, as descriptors: ``tiny`` (a small real decoder), ``tiny-hybrid`` (one
with recurrent layers, alone or among attention) and ``scripted`` (an exact text).

The testkit registers them; a test that has no testkit can register them on a board of its own.
"""

from __future__ import annotations

from pegboard.api.model import Abilities, ModelFamily

__all__ = ["HYBRID_FAMILY", "SCRIPTED_FAMILY", "TINY_FAMILY"]

TINY_FAMILY = ModelFamily(
    name="tiny",
    architectures={"hf": ("PegboardTiny",)},
    config="pegboard.testing.tiny_config:read_tiny",
    weights="pegboard.testing.tiny_config:tiny_weights",
    build="pegboard.testing.tiny:build",
    abilities=Abilities(tensor_parallel=True),
)

HYBRID_FAMILY = ModelFamily(
    name="tiny-hybrid",
    architectures={"hf": ("PegboardTinyHybrid",)},
    config="pegboard.testing.hybrid_config:read_hybrid",
    weights="pegboard.testing.hybrid_config:hybrid_weights",
    build="pegboard.testing.hybrid:build",
)

SCRIPTED_FAMILY = ModelFamily(
    name="scripted",
    architectures={"hf": ("PegboardScripted",)},
    config="pegboard.testing.scripted_config:read_scripted",
    weights="pegboard.testing.scripted_config:scripted_weights",
    build="pegboard.testing.scripted:build",
)
