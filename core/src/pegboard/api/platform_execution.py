"""How work is ordered on a device, and joined among several. Part of `pegboard.api.platform`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pegboard.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = ["Communication", "Execution", "Immediate", "Mark", "Recording"]


class Mark(Protocol):
    """A point in the order of a device's work."""

    def wait(self) -> None:
        """Return when everything submitted before the mark is done."""
        ...


class Recording(Protocol):
    """Device work that was recorded, to be submitted again as a whole."""

    def replay(self) -> None:
        """Submit it: the same operations on the same memory, whatever that holds by now."""
        ...


class Execution(Protocol):
    """How work is ordered on the device. All of it is in one order, that of submission."""

    @property
    def asynchronous(self) -> bool:
        """Calls submit work and return before it is done."""
        ...

    @property
    def records(self) -> bool:
        """`record` can be used."""
        ...

    def synchronize(self) -> None:
        """Wait until all submitted work is done."""
        ...

    def mark(self) -> Mark:
        """A mark behind what was submitted so far."""
        ...

    def record(self, work: Callable[[], None]) -> Recording:
        """Call ``work()`` without running it, and keep what it submits. Its temporary memory is
        shared with that of other recordings: results that must outlive a replay of another go to
        memory from before. Raises `UnsupportedError` where the device cannot."""
        ...


class Immediate:
    """`Execution`, and the mark, of a device whose calls return when their work is done."""

    asynchronous = False
    records = False

    def synchronize(self) -> None:
        """Nothing is ever outstanding."""

    def mark(self) -> Mark:
        return self

    def wait(self) -> None:
        """Everything is done."""

    def record(self, work: Callable[[], None]) -> Recording:
        raise UnsupportedError("this device records no work")


class Communication(Protocol):
    """Collective operations among the ranks of one engine, each on a device of its own.

    Every rank calls the same ones in the same order, with tensors of the same shape and dtype that
    lie on its device. They take their place in the order of the device's other work, and may be
    recorded with it where `Execution.records`. A rank that never comes lets the others wait; to end
    them is the business of whoever started them.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int:
        """How many ranks there are."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, the same bits on each of them; may be written into `x`."""
        ...

    def all_gather(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        """The tensors of all ranks joined along `axis`, in the order of the ranks."""
        ...

    def close(self) -> None:
        """Let go of the connections; the other ranks may be gone already."""
        ...
