"""Ranks on the GPUs of one host that reach one another through NCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (  # type: ignore[attr-defined]
    AllgatherOptions,
    AllreduceOptions,
)

from pegboard.errors import UnsupportedError

__all__ = ["NcclCommunication"]

_LONGEST_WAIT = timedelta(hours=1)


class NcclCommunication:
    """`pegboard.api.platform.Communication` of tensors on GPU `index`.

    Operations go to the current stream, so that they can be recorded with what is around them. The
    first ones open the connections: it must not be recorded. Nothing of it is global:
    `torch.distributed` has no default group afterwards.
    """

    def __init__(self, rank: int, world: int, address: str, index: int) -> None:
        """Raises `UnsupportedError` where torch was built without NCCL."""
        if not (dist.is_available() and dist.is_nccl_available()):
            raise UnsupportedError(
                f"{world} ranks need NCCL, which torch {torch.__version__} was built without"
            )
        self.rank = rank
        self.world = world
        nccl: Any = dist.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = _LONGEST_WAIT
        store = dist.FileStore(address, world)  # type: ignore[attr-defined]
        self._group: Any = nccl(store, rank, world, options)
        self.all_reduce(torch.zeros(1, device=torch.device("cuda", index)))
        torch.cuda.synchronize(index)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """In place where `x` is contiguous."""
        x = x.contiguous()
        if x.numel():
            options = AllreduceOptions()
            options.asyncOp = False
            _wait(self._open().allreduce([x], options))
        return x

    def all_gather(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        gathered = x.new_empty((self.world, *x.shape))
        if x.numel():
            options = AllgatherOptions()
            options.asyncOp = False
            flat = gathered.flatten(0, 1)
            _wait(self._open()._allgather_base(flat, x.contiguous(), options))
        return torch.cat(gathered.unbind(0), axis)

    def close(self) -> None:
        """Without waiting for work that another rank may never join."""
        if self._group is not None:
            self._group.abort()
            self._group = None

    def _open(self) -> Any:
        assert self._group is not None, "closed"
        return self._group


def _wait(work: Any) -> None:
    """Let the current stream come after `work`, if it is not in that stream anyway."""
    if work is not None:
        work.wait()
