"""Opening a device: platform, dtypes, KV groups, an attention kernel per group, the op table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import torch

from pegboard.api.attention import AttentionBackend, AttentionContext, AttentionKernel
from pegboard.api.kv import KVGroup, KVLayout
from pegboard.api.platform import DeviceRuntime, Platform
from pegboard.config.connect import accepted_layouts, require_connector
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.errors import SelectionError
from pegboard.kv.groups import form_groups
from pegboard.nn import OpTable
from pegboard.runner.select import BackendWish, choose_backend, choose_platform

if TYPE_CHECKING:
    from pegboard.plugins import Board, Registry

__all__ = ["GroupAttention", "OpenedDevice", "open_device"]


@attrs.frozen(eq=False)
class GroupAttention:
    """The kernel of one group and where it came from."""

    backend: str
    kernel: AttentionKernel
    layout: KVLayout


@attrs.frozen(eq=False)
class OpenedDevice:
    """A device that was chosen, and what was decided because of it."""

    platform: str
    runtime: DeviceRuntime
    device: torch.device
    model: ResolvedModel
    """With the dtypes that the device has."""
    groups: tuple[KVGroup, ...]
    attention: tuple[GroupAttention, ...]
    ops: OpTable


def open_device(board: Board, config: EngineConfig, resolved: ResolvedModel) -> OpenedDevice:
    """Make every choice that needs no weights.

    Raises `MissingPluginError` or `SelectionError` if no platform or attention backend serves, and
    `ConfigError` if the device lacks the dtype asked for.
    """
    platform = _platform(board, config)
    runtime: DeviceRuntime = platform.runtime.load()(0)
    model = resolved.on_device(config, runtime.device.dtypes())
    groups = form_groups(model.facts.kv_slots, config.block_size)
    ops = OpTable.choose(board.registry("ops"), platform=platform.name, dtype=model.dtype)
    kernels = _Kernels(board, config, platform.name, runtime, model)
    return OpenedDevice(
        platform=platform.name,
        runtime=runtime,
        device=runtime.device.torch_device(),
        model=model,
        groups=groups,
        attention=tuple(kernels.make(group) for group in groups),
        ops=ops,
    )


def _platform(board: Board, config: EngineConfig) -> Platform:
    wanted = config.platform
    if wanted is not None:
        board.require("platform", wanted, wanted_by=f"--platform {wanted}")
    return choose_platform(board.require_any("platform", wanted_by="the engine"), wanted)


@attrs.frozen(eq=False)
class _Kernels:
    """Makes the kernel of a group."""

    board: Board
    config: EngineConfig
    platform: str
    runtime: DeviceRuntime
    model: ResolvedModel

    def make(self, group: KVGroup) -> GroupAttention:
        """Choose the backend, build its kernel and take the layout it prefers."""
        backend = choose_backend(self._backends(), group, self._wish())
        kernel: AttentionKernel = backend.kernel.load()(
            AttentionContext(
                group=group,
                dtype=getattr(torch, self.model.dtype),
                device=self.runtime.device.torch_device(),
                max_rows=self.config.max_num_seqs,
                max_tokens=self.config.max_num_batched_tokens,
                platform=self.runtime.facts(),
            )
        )
        layouts = kernel.layouts(group.spec)
        if not layouts:
            raise SelectionError(
                f"attention backend {backend.name} offers no KV layout for {group.spec}"
            )
        where = f"attention backend {backend.name}, for KV group {group.index},"
        return GroupAttention(backend.name, kernel, self._accepted(layouts, where)[0])

    def _accepted(self, layouts: Sequence[KVLayout], where: str) -> Sequence[KVLayout]:
        """Those that the KV connector can handle, if there is one."""
        wanted = self.config.kv_transfer_config
        if wanted is None:
            return layouts
        groups = form_groups(self.model.facts.kv_slots, self.config.block_size)
        return accepted_layouts(require_connector(self.board, wanted, groups), layouts, where)

    def _backends(self) -> Registry[AttentionBackend]:
        name = self.config.attention_backend
        if name is not None:
            self.board.require("attention", name, wanted_by=f"--attention-backend {name}")
        return self.board.require_any("attention", wanted_by=self.model.path)

    def _wish(self) -> BackendWish:
        return BackendWish(
            platform=self.platform, dtype=self.model.dtype, name=self.config.attention_backend
        )
