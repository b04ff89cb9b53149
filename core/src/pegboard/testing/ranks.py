"""Ranks as threads of one process, to test what is shared out without starting processes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pegboard.api.model import Parallel

if TYPE_CHECKING:
    import torch

__all__ = ["ThreadCommunication", "run_ranks"]

T = TypeVar("T")


class _Meeting:
    """Where the threads put and find tensors."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=60)
        self.brought: list[Any] = [None] * world


class ThreadCommunication:
    """`pegboard.api.platform.Communication` among threads; see `run_ranks`."""

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        self.rank = rank
        self.world = len(meeting.brought)
        self._meeting = meeting

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self._exchange(x)
        total = first.clone()
        for other in others:
            total += other
        return total

    def all_gather(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        import torch

        return torch.cat(self._exchange(x), axis)

    def close(self) -> None:
        """Nothing is held."""

    def _exchange(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What every rank brings to this call, copied, for the others may write into theirs."""
        meeting = self._meeting
        meeting.brought[self.rank] = x
        meeting.barrier.wait()
        found = [tensor.clone() for tensor in meeting.brought]
        meeting.barrier.wait()
        return found


def run_ranks(world: int, work: Callable[[Parallel], T]) -> list[T]:
    """``work(parallel)`` on a thread for each of `world` ranks, which can reach one another; what
    each returns, by rank. Raises the first error that was not another one's consequence."""
    meeting = _Meeting(world)

    def run(rank: int) -> T:
        try:
            return work(Parallel(rank, world, ThreadCommunication(rank, meeting)))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        futures = [pool.submit(run, rank) for rank in range(world)]
        errors = [error for error in (future.exception() for future in futures) if error]
    if errors:
        own = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
        raise (own or errors)[0]
    return [future.result() for future in futures]
