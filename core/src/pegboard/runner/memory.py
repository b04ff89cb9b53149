"""How much memory a piece of work takes at its peak, seen from the tensors it makes."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pegboard.errors import ResourceError
from pegboard.runner.slots import Limits

__all__ = ["allocating", "peak_bytes", "step_peak"]

SMALL_STEP = 32
"""Tokens up to which a step is run whole where speed matters."""


@contextlib.contextmanager
def allocating(limits: Limits) -> Iterator[None]:
    """Where what `limits` size is allocated: `ResourceError` names the settings if it fails."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        out = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not out and "alloc" not in str(error).lower():  # a CPU's allocator has no own class
            raise
        reason = (str(error).splitlines() or ["out of memory"])[0]
        raise ResourceError(
            f"what max_num_seqs={limits.max_rows}, max_num_batched_tokens={limits.max_tokens}, "
            f"max_model_len={limits.max_model_len} and the KV cache need cannot be allocated "
            f"({reason}); lower one of them"
        ) from error


def peak_bytes(work: Callable[[], Any]) -> int:
    """Most bytes of tensors, made during ``work()``, that were alive at once.

    Works for every device. What a kernel allocates and frees inside one operation is not seen.
    """
    meter = _Meter()
    with meter:
        work()
    return meter.peak


def step_peak(
    run: Callable[[list[int]], Any],
    limits: Limits,
    *,
    exact: bool,
    measure: Callable[[Callable[[], Any]], int | None] = lambda work: None,
) -> int:
    """Peak of ``run(row lengths)`` for the largest step that `limits` allow.

    `measure` is the device's own meter, `Memory.peak_bytes`. If not `exact` and the step is large,
    a small step of the same mix of rows is measured and scaled up. That is an upper bound, as long
    as kernels work in tiles: memory grows at most in proportion to tokens and rows.
    """
    tokens, rows = limits.max_tokens, min(limits.max_rows, limits.max_tokens)
    largest = _mix(tokens, rows, limits.max_model_len)
    if exact or sum(largest) <= SMALL_STEP:
        metered = measure(lambda: run(largest))
        return peak_bytes(lambda: run(largest)) if metered is None else metered
    small = _mix(SMALL_STEP, -(-rows * SMALL_STEP // sum(largest)), limits.max_model_len)
    return peak_bytes(lambda: run(small)) * -(-sum(largest) // sum(small))


def _mix(tokens: int, rows: int, longest: int) -> list[int]:
    """Row lengths of a large step: a token each, the rest in as few rows as the context allows."""
    tokens = min(tokens, rows * longest)
    counts, spare = [1] * rows, tokens - rows
    for row in range(rows):
        extra = min(spare, longest - 1)
        counts[row] += extra
        spare -= extra
    return counts


class _Meter(TorchDispatchMode):
    """Watches the storages that operations return until they die."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live = 0
        self._known: set[int] = set()
        """Addresses of live storages, those that were there before included."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: the compiler would be imported, which takes seconds, only to be told to stay away."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _tensors((args, *kwargs.values())):
            self._meet(tensor.untyped_storage(), counted=False)  # made outside, if it is new
        result = func(*args, **kwargs)
        for tensor in _tensors(result):
            self._meet(tensor.untyped_storage(), counted=True)
        return result

    def _meet(self, storage: torch.UntypedStorage, *, counted: bool) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self._known:
            return
        size = size if counted else 0
        self._known.add(address)
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._part, address, size).atexit = False

    def _part(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._live -= size


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """In an argument or a result of an operation: a tensor, or one of many in a sequence."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
