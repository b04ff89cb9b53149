"""The board of a kit: what is installed, and the descriptor under test if it is not."""

from __future__ import annotations

from pegboard.api.descriptor import Descriptor
from pegboard.plugins import Board, load_plugins

__all__ = ["board_with"]


def board_with(surface: str, descriptor: Descriptor) -> Board:
    """A board with this descriptor: the installed one of that name must be the same."""
    board = load_plugins()
    found = board.registry(surface).get(descriptor.name)
    if found is None:
        return load_plugins(extra=[(surface, descriptor)])
    assert found == descriptor, f"{surface} {descriptor.name!r} is installed, but is another one"
    return board
