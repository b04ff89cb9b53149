"""Opening a device: platform, dtypes, KV groups, an attention kernel per group, the op table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs
import torch

from pegboard.api.attention import AttentionBackend, AttentionContext, AttentionKernel
from pegboard.api.kv import KVCacheConfig, KVGroup, KVLayout, RecurrentSpec
from pegboard.api.model import Parallel
from pegboard.api.platform import DeviceRuntime, Platform
from pegboard.api.recurrent import STATE_BORDERS
from pegboard.config.connect import accepted_layouts, require_connector
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.errors import ConfigError, SelectionError, UnsupportedError
from pegboard.kv.groups import form_groups
from pegboard.logging import get_logger
from pegboard.nn import OpTable
from pegboard.runner.attention import GroupAttention
from pegboard.runner.layouts import STATE_LAYOUT, choose_layouts
from pegboard.runner.mixers import PLAIN_MIXERS
from pegboard.runner.place import RankPlace
from pegboard.runner.select import (
    BackendWish,
    choose_backend,
    choose_platform,
    choose_prompts_backend,
)
from pegboard.runner.split import SplitKernel

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["OpenedDevice", "open_device"]


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
    parallel: Parallel


def open_device(
    board: Board,
    config: EngineConfig,
    resolved: ResolvedModel,
    place: RankPlace = RankPlace(),  # noqa: B008  frozen
) -> OpenedDevice:
    """Make every choice that needs no weights, and join the other ranks if there are some.

    Raises `MissingPluginError` or `SelectionError` if no platform or attention backend serves,
    `ConfigError` if the device lacks the dtype asked for or there is none for this rank, and
    `UnsupportedError` if the platform serves one rank.
    """
    platform = _platform(board, config)
    runtime = _runtime(platform, place)
    model = resolved.on_device(config, runtime.device.dtypes())
    groups = form_groups(model.facts.kv_slots, config.block_size)
    kernels = _Kernels(board, config, platform.name, runtime, model)
    return OpenedDevice(
        platform=platform.name,
        runtime=runtime,
        device=runtime.device.torch_device(),
        model=model,
        groups=groups,
        attention=kernels.make_all(groups),
        ops=_ops(board, config, platform.name, model.dtype),
        parallel=_join(runtime, place),
    )


def _runtime(platform: Platform, place: RankPlace) -> DeviceRuntime:
    """The device of this rank."""
    try:
        runtime: DeviceRuntime = platform.runtime.load()(place.rank)
    except ConfigError as error:
        if place.world == 1:
            raise
        raise ConfigError(
            f"tensor_parallel_size={place.world} is not allowed: rank {place.rank} finds no "
            f"device: {error}"
        ) from None
    return runtime


def _join(runtime: DeviceRuntime, place: RankPlace) -> Parallel:
    if place.world == 1:
        return Parallel()
    comm = runtime.communicate(place.rank, place.world, place.address)
    return Parallel(place.rank, place.world, comm)


def _ops(board: Board, config: EngineConfig, platform: str, dtype: str) -> OpTable:
    """The table that ``config.op_versions`` asks for."""
    if config.op_versions == "plain":
        return OpTable.plain()
    return OpTable.choose(board.registry("ops"), platform=platform, dtype=dtype)


def _platform(board: Board, config: EngineConfig) -> Platform:
    wanted = config.platform
    if wanted is not None:
        board.require("platform", wanted, wanted_by=f"platform={wanted!r}")
    return choose_platform(board.require_any("platform", wanted_by="the engine"), wanted)


@attrs.frozen(eq=False)
class _Kernels:
    """Makes the kernel of a group."""

    board: Board
    config: EngineConfig
    platform: str
    runtime: DeviceRuntime
    model: ResolvedModel

    def make_all(self, groups: Sequence[KVGroup]) -> tuple[GroupAttention, ...]:
        """A kernel per group, and layouts that let the groups share memory."""
        made = [self._make(group) for group in groups]
        offers = [offered for _, _, offered in made]
        layouts = choose_layouts(KVCacheConfig(tuple(groups), num_blocks=1), offers)
        return tuple(
            GroupAttention(backend, kernel, layout)
            for (backend, kernel, _), layout in zip(made, layouts, strict=True)
        )

    def _make(
        self, group: KVGroup
    ) -> tuple[AttentionBackend, AttentionKernel, tuple[KVLayout, ...]]:
        """Choose the backend and build its kernel: both, and the layouts it offers."""
        state = isinstance(group.spec, RecurrentSpec)
        wish = self._wish(group)
        backends = list(self._mixers() if state else self._backends())
        prompts = [backend for backend in backends if backend.rows == "prompts"]
        if wish.name in {backend.name for backend in prompts}:
            # The one asked for needs another beside it, and that may be any.
            rest_wish = attrs.evolve(wish, name=None)
        else:
            rest_wish = wish
        rest = [backend for backend in backends if backend.rows == "all"]
        backend = choose_backend(rest, group, rest_wish)
        kernel = self._build(backend, group)
        if not state and not backend.fused_kv_write:
            backend, kernel = self._with_prompts(backend, kernel, group, prompts)
        layouts = (STATE_LAYOUT,) if state else kernel.layouts(group.spec)
        if not layouts:
            raise SelectionError(
                f"attention backend {backend.name} offers no KV layout for {group.spec}"
            )
        where = f"attention backend {backend.name}, for KV group {group.index},"
        return backend, kernel, tuple(self._accepted(layouts, where))

    def _build(self, backend: AttentionBackend, group: KVGroup) -> AttentionKernel:
        kernel: AttentionKernel = backend.kernel.load()(
            AttentionContext(
                group=group,
                dtype=getattr(torch, self.model.dtype),
                device=self.runtime.device.torch_device(),
                max_rows=self.config.max_num_seqs,
                max_tokens=self.config.max_num_batched_tokens,
                platform=self.runtime.facts(),
                features=self.model.facts.attention_features,
            )
        )
        return kernel

    def _with_prompts(
        self,
        backend: AttentionBackend,
        kernel: AttentionKernel,
        group: KVGroup,
        candidates: Sequence[AttentionBackend],
    ) -> tuple[AttentionBackend, AttentionKernel]:
        """The kernel joined with the best one for prompts, if there is one that serves here."""
        chosen = choose_prompts_backend(candidates, group, self._wish(group))
        if chosen is None:
            return backend, kernel
        try:
            own = self._build(chosen, group)
        except UnsupportedError as error:
            get_logger("pegboard.runner").info(
                "attention backend not used", backend=chosen.name, reason=str(error)
            )
            return backend, kernel
        joined = SplitKernel(own, kernel)
        if not joined.layouts(group.spec):
            return backend, kernel
        return attrs.evolve(backend, name=f"{chosen.name}+{backend.name}"), joined

    def _accepted(self, layouts: Sequence[KVLayout], where: str) -> Sequence[KVLayout]:
        """Those that the KV connector can handle, if there is one."""
        wanted = self.config.kv_transfer_config
        if wanted is None:
            return layouts
        groups = form_groups(self.model.facts.kv_slots, self.config.block_size)
        return accepted_layouts(require_connector(self.board, wanted, groups), layouts, where)

    def _backends(self) -> Iterable[AttentionBackend]:
        name = self.config.attention_backend
        if name is not None:
            self.board.require("attention", name, wanted_by=f"attention_backend={name!r}")
        return self.board.require_any("attention", wanted_by=self.model.path)

    def _mixers(self) -> Iterable[AttentionBackend]:
        return (*self.board.registry("attention"), *PLAIN_MIXERS)

    def _wish(self, group: KVGroup) -> BackendWish:
        """``attention_backend`` is about attention; a recurrent layer takes the best there is."""
        spec = group.spec
        if isinstance(spec, RecurrentSpec):
            features = frozenset({STATE_BORDERS} if spec.cache == "all" else ())
            return BackendWish(self.platform, self.model.dtype, features)
        return BackendWish(
            platform=self.platform,
            dtype=self.model.dtype,
            features=self.model.facts.attention_features,
            name=self.config.attention_backend,
        )
