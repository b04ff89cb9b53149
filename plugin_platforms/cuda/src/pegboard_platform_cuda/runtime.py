"""An NVIDIA GPU as a device, through torch."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pegboard.api.platform import Communication, Mark, ProbeResult, Recording
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_platform_cuda.driver import driver_present, driver_version, hidden

if TYPE_CHECKING:
    import torch

__all__ = ["CudaDevice", "CudaExecution", "CudaMemory", "CudaRuntime", "probe"]

_BFLOAT16_CAPABILITY = (8, 0)
_MARGIN_SHARE = 128
_LEAST_MARGIN = 256 << 20


def probe() -> ProbeResult:
    """Usable where torch was built with CUDA and finds a GPU. Torch is imported only where a driver
    seems to be there."""
    reason = _missing()
    if reason is None:
        reason = _missing_in_torch()
    if reason is not None:
        return ProbeResult(present=False, reason=reason)
    import torch

    count, name = torch.cuda.device_count(), torch.cuda.get_device_name(0)
    return ProbeResult(present=True, reason=name if count == 1 else f"{count} GPUs, first {name}")


def _missing() -> str | None:
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed"
    if not driver_present():
        return "no NVIDIA driver found"
    value = hidden()
    if value is not None:
        return f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU"
    return None


def _missing_in_torch() -> str | None:
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"torch cannot be imported: {_first_line(error)}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if available:
        return None
    why = f": {_first_line(said[-1].message)}" if said else ""
    return f"torch {torch.__version__} finds no usable GPU{why}"


def _first_line(said: object) -> str:
    return (str(said).splitlines() or [type(said).__name__])[0]


class CudaDevice:
    """Identity and number formats of GPU `index`."""

    def __init__(self, index: int) -> None:
        self._index = index

    def torch_device(self) -> torch.device:
        import torch

        return torch.device("cuda", self._index)

    def dtypes(self) -> tuple[str, ...]:
        """bfloat16 is there from compute capability 8.0 on."""
        import torch

        if torch.cuda.get_device_capability(self._index) >= _BFLOAT16_CAPABILITY:
            return ("bfloat16", "float16", "float32")
        return ("float16", "float32")


class CudaMemory:
    """The memory of GPU `index`, seen through torch's allocator and the driver."""

    def __init__(self, index: int) -> None:
        self._index = index

    def total_bytes(self) -> int:
        import torch

        return int(torch.cuda.get_device_properties(self._index).total_memory)

    def free_bytes(self) -> int:
        """What the driver would give, and what torch's allocator holds but nobody uses."""
        import torch

        held = torch.cuda.memory_reserved(self._index) - torch.cuda.memory_allocated(self._index)
        return int(torch.cuda.mem_get_info(self._index)[0]) + held

    def cache_limit(self) -> int | None:
        """None: a GPU has nothing else to do."""

    def peak_bytes(self, work: Callable[[], Any]) -> int | None:
        """Counts what torch took from the driver at its peak, not only what tensors filled of it,
        and what libraries took beside torch and kept (loaded kernels). A margin is added for what
        recordings take later: their own temporary memory, which cannot be that of other steps,
        the driver's bookkeeping of each kernel call, and a workspace of the matrix library for the
        stream that they are made on: 1/128 of the device's memory, at least 256 MiB.
        """
        import torch

        torch.cuda.synchronize(self._index)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._index)
        held, free = torch.cuda.memory_reserved(self._index), self._driver_free()
        work()
        torch.cuda.synchronize(self._index)
        peak = torch.cuda.max_memory_reserved(self._index) - held
        grown = torch.cuda.memory_reserved(self._index) - held
        beside = max(free - self._driver_free() - grown, 0)
        return int(peak + beside + max(self.total_bytes() // _MARGIN_SHARE, _LEAST_MARGIN))

    def _driver_free(self) -> int:
        import torch

        return int(torch.cuda.mem_get_info(self._index)[0])


class CudaMark:
    """An event on the stream that was current."""

    def __init__(self, index: int) -> None:
        import torch

        self._event = torch.cuda.Event(blocking=False)
        self._event.record(torch.cuda.current_stream(index))

    def wait(self) -> None:
        self._event.synchronize()


class CudaExecution:
    """Work goes to the current stream of the thread that submits it; recordings are CUDA graphs.

    All recordings share one pool of temporary memory. Work that is to be recorded must have run
    before, so that kernels are compiled and libraries have their workspaces.
    """

    asynchronous = True
    records = True

    def __init__(self, index: int) -> None:
        import torch

        self._index = index
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(index)

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self._index)

    def mark(self) -> Mark:
        return CudaMark(self._index)

    def record(self, work: Callable[[], None]) -> Recording:
        """The `CUDAGraph`. Raises `UnsupportedError`, with the first thing that went wrong, where
        the work waits for the device, or does something else that a graph cannot hold;
        `torch.OutOfMemoryError` where memory ran out."""
        import torch

        graph = torch.cuda.CUDAGraph()
        causes: list[Exception] = []

        def watched() -> None:
            try:
                work()
            except Exception as error:
                causes.append(error)
                raise

        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                watched()
        except RuntimeError as error:
            # leaving a broken recording raises too, and that error says nothing
            cause = causes[0] if causes else error
            if isinstance(cause, torch.OutOfMemoryError):
                raise cause from None
            raise UnsupportedError(f"this work cannot be recorded: {_first_line(cause)}") from cause
        return graph


class CudaRuntime:
    """GPU `index`, opened; it becomes the current device of the calling thread."""

    def __init__(self, index: int = 0) -> None:
        import torch

        # Kernels are written for fused products and sums, which Triton 3.9 warns that it will no
        # longer compile to unless it is told.
        os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
        count = torch.cuda.device_count()
        if not 0 <= index < count:
            allowed = f"0 to {count - 1}" if count else "none, since no GPU is usable"
            raise ConfigError(
                f"device index {index} is not allowed: the cuda platform has {allowed}"
            )
        torch.cuda.set_device(index)
        self._index = index
        self.device = CudaDevice(index)
        self.memory = CudaMemory(index)
        self.execution = CudaExecution(index)

    def communicate(self, rank: int, world: int, address: str) -> Communication:
        """Join the ranks on this host's other GPUs."""
        from pegboard_platform_cuda.communication import NcclCommunication

        return NcclCommunication(rank, world, address, self._index)

    def facts(self) -> dict[str, Any]:
        """Plain values; `driver` is the newest CUDA version that the driver supports."""
        import torch

        found = torch.cuda.get_device_properties(self._index)
        return {
            "platform": "cuda",
            "device": str(found.name),
            "index": self._index,
            "capability": (int(found.major), int(found.minor)),
            "multiprocessors": int(found.multi_processor_count),
            "total_bytes": self.memory.total_bytes(),
            "l2_bytes": int(found.L2_cache_size),
            "cuda": torch.version.cuda,
            "driver": driver_version(),
        }
