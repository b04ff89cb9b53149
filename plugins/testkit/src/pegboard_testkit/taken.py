"""Which names of a plugin that is about to be written are in use in this environment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from pegboard.testing.boards import Board

__all__ = ["names_in_use"]

_ALSO = {"alias": ("model",), "model": ("alias",), "platform": ("attention",)}
"""Surfaces in which the things of a template have, or must not have, their names too."""


def names_in_use(surface: str, names: Mapping[str, str], board: Board) -> list[str]:
    """A sentence for each name that another plugin has, with what follows from it; `names` are
    those that the templates put in."""
    return [*_of_the_plugin(names, board), *_of_its_things(surface, names, board)]


def _of_the_plugin(names: Mapping[str, str], board: Board) -> Iterator[str]:
    own = names["distribution"]
    for record in board.plugins:
        if record.id == names["name"] and record.distribution != own:
            yield (
                f"the id {record.id!r} is that of {record.distribution} {record.version}: with "
                "both installed, neither loads"
            )
        elif record.distribution == own:
            yield f"{own} {record.version} is installed: this plugin would take its place"
    if find_spec(names["module"]) is not None and own not in {
        r.distribution for r in board.plugins
    }:
        yield f"the module {names['module']!r} can be imported already: one would hide the other"


def _of_its_things(surface: str, names: Mapping[str, str], board: Board) -> Iterator[str]:
    """Names and claims that the templates of this surface register."""
    name, architecture = names["name"], f"{names['cls']}ForCausalLM"
    keys = (name, names["key"], architecture, f"hf:{architecture}")
    for other in (surface, *_ALSO.get(surface, ())):
        for key in dict.fromkeys((*keys, f"{name}.silu_mul", f"method:{name}")):
            if key in board.registry(other):
                owner = board.provenance(other, key)
                if owner.distribution == names["distribution"]:
                    continue
                yield (
                    f"{other} {key!r} is registered by {owner.distribution} {owner.version}: with "
                    "both installed, whoever asks for it is refused, unless one overrides the other"
                )
            elif board.offered(other, key):
                yield f"{other} {key!r} is what a plugin of this release is called"
