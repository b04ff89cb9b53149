"""Surface *platform*: a device and what it can do.

Called by: the engine at start-up to choose (`probe`), then by the executor in the process that
holds the device. The protocols are small on purpose: a platform implements `Device`, `Memory` and
`Execution`, and communication where it can serve several ranks. ``NullPlatform`` in
`pegboard.testing` is the smallest one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from pegboard.api._parts import late_exports
from pegboard.api.descriptor import LazyRef, lazy_ref

if TYPE_CHECKING:
    from pegboard.api.platform_device import Device, DeviceRuntime, Memory, ProbeResult
    from pegboard.api.platform_execution import Communication, Execution, Immediate, Mark, Recording

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

if not TYPE_CHECKING:
    __getattr__ = late_exports(__name__, __all__, "platform_device", "platform_execution")


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
