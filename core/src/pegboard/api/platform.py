"""Surface *platform*: a device and what it can do.

Called by: the engine at start-up to choose (`probe`), then by the executor in the process that
holds the device. The protocols are small on purpose: a platform implements `Device`, `Memory` and
`Execution`, and communication where it can serve several ranks. ``NullPlatform`` in
`pegboard.testing` is the smallest one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.errors import UnsupportedError

if TYPE_CHECKING:
    import torch

__all__ = [
    "Communication",
    "Device",
    "DeviceRuntime",
    "Execution",
    "Immediate",
    "Mark",
    "Memory",
    "Platform",
    "ProbeResult",
    "Recording",
]


@attrs.frozen
class ProbeResult:
    """Answer of a probe: usable here, or why not."""

    present: bool
    reason: str
    """One sentence for the log and for selection errors, e.g. ``"no CUDA driver found"``."""


@attrs.frozen
class Platform:
    """Descriptor of a platform.

    `probe` refers to a function ``() -> ProbeResult`` that is quick, never raises and does not
    import torch unless it must. `runtime` refers to a callable ``(index: int) -> DeviceRuntime``,
    with `takes_settings` to ``(index: int, settings: Any) -> DeviceRuntime``.
    Among usable platforms the highest
    `priority` wins, and a tie is an error that names both (the setting ``platform`` decides).
    """

    name: str
    probe: LazyRef = attrs.field(converter=lazy_ref)
    runtime: LazyRef = attrs.field(converter=lazy_ref)
    priority: int = 0
    takes_settings: bool = False
    """`runtime` is given the plugin's own (`pegboard.api.hooks.Hooks.pegboard_settings`)."""

    def claims(self) -> tuple[str, ...]:
        return ()


class Device(Protocol):
    """Identity and number formats."""

    def torch_device(self) -> torch.device: ...

    def dtypes(self) -> tuple[str, ...]:
        """Names of supported compute dtypes, the preferred first, e.g. ``("bfloat16",
        "float32")``."""
        ...


class Memory(Protocol):
    """Byte counts."""

    def total_bytes(self) -> int:
        """Memory that this process may use on the device."""
        ...

    def free_bytes(self) -> int:
        """Memory free now."""
        ...

    def cache_limit(self) -> int | None:
        """Most bytes that a KV cache should take unless the user asks for more; None for no such
        limit."""
        ...

    def peak_bytes(self, work: Callable[[], Any]) -> int | None:
        """Most bytes that ``work()``, which it calls, takes at once beyond what was taken before.

        None, without calling it, where the device has no such meter: the core then counts the
        tensors that it sees.
        """
        ...


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


class DeviceRuntime(Protocol):
    """One opened device, held by one worker."""

    device: Device
    memory: Memory
    execution: Execution

    def communicate(self, rank: int, world: int, address: str) -> Communication:
        """Join `world` ranks, of which this is number `rank`; returns when all have come.

        `address` is the path of a file that all ranks can reach and that nobody else uses; it need
        not exist. Called at most once, before memory is asked about: ranks that share a memory
        share it out from then on. Raises `UnsupportedError` where the platform serves one rank.
        """
        ...

    def facts(self) -> dict[str, Any]:
        """Name, cores, capabilities: plain values for the banner, the bug report and op
        conditions."""
        ...
