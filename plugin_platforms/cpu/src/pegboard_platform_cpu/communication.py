"""Ranks on one host that reach one another through torch's gloo."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pegboard.errors import UnsupportedError

__all__ = ["GlooCommunication"]

_LONGEST_WAIT = timedelta(days=1)
"""Ranks that compute long steps are waited for; one that ended is noticed at once."""


class GlooCommunication:
    """`pegboard.api.platform.Communication` of tensors in host memory.

    The ranks meet through a file and then talk over the loopback interface, on ports that the
    system chooses. Nothing of it is global: `torch.distributed` has no default group afterwards.
    """

    def __init__(self, rank: int, world: int, address: str) -> None:
        """Raises `UnsupportedError` where torch was built without gloo."""
        if not (dist.is_available() and dist.is_gloo_available()):
            raise UnsupportedError(
                f"{world} ranks need gloo, which torch {torch.__version__} was built without"
            )
        self.rank = rank
        self.world = world
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = _LONGEST_WAIT
        store = dist.FileStore(address, world)  # type: ignore[attr-defined]
        self._group: Any = gloo(store, rank, world, options)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """In place where `x` is contiguous."""
        x = x.contiguous()
        if x.numel():
            self._open().allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor, axis: int) -> torch.Tensor:
        gathered = x.new_empty((self.world, *x.shape))
        if x.numel():
            self._open()._allgather_base(gathered.flatten(0, 1), x.contiguous()).wait()
        return torch.cat(gathered.unbind(0), axis)

    def close(self) -> None:
        self._group = None

    def _open(self) -> Any:
        assert self._group is not None, "closed"
        return self._group
