"""Opening a device: platform, dtypes, KV groups, an attention kernel per group, the op table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, cast

import attrs
import torch

from pegboard.api.attention import (
    AttentionBackend,
    AttentionContext,
    AttentionKernel,
    PromptsKernel,
    WarmingKernel,
)
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
    runtime = _runtime(board, platform, place)
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


def _runtime(board: Board, platform: Platform, place: RankPlace) -> DeviceRuntime:
    """The device of this rank."""
    more = (board.settings("platform", platform.name),) if platform.takes_settings else ()
    try:
        runtime: DeviceRuntime = platform.runtime.load()(place.rank, *more)
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
    registry = board.require_any("platform", wanted_by="the engine")
    return choose_platform(registry, wanted, lambda: board.left_out("platform"))


@attrs.frozen(eq=False)
class _Made:
    """What serves one group."""

    backend: AttentionBackend
    kernel: AttentionKernel
    layouts: tuple[KVLayout, ...]
    """That it can use and a connector accepts, the preferred first."""
    warming: tuple[WarmingKernel, ...]


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
        layouts = choose_layouts(
            KVCacheConfig(tuple(groups), num_blocks=1), [one.layouts for one in made]
        )
        return tuple(
            GroupAttention(one.backend, one.kernel, layout, one.warming)
            for one, layout in zip(made, layouts, strict=True)
        )

    def _make(self, group: KVGroup) -> _Made:
        """Choose the backend, or the two that share a group, and build what serves it."""
        wish = self._wish(group)
        if isinstance(group.spec, RecurrentSpec):
            backend = choose_backend(self._mixers(), group, wish)
            kernel, warming = self._build(backend, group), ()
            return _Made(backend, kernel, self._accepted([STATE_LAYOUT], backend, group), warming)
        backends = list(self._backends())
        prompts = [backend for backend in backends if backend.rows == "prompts"]
        asked = any(wish.name == backend.name for backend in prompts)
        rest = [backend for backend in backends if backend.rows == "all"]
        # One for prompts that is asked for needs another beside it, and that may be any.
        shared = attrs.evolve(wish, name=None) if asked else wish
        backend = choose_backend(rest, group, shared, lambda: self.board.left_out("attention"))
        kernels = [(backend, self._build(backend, group))]
        first = None
        if not backend.fused_kv_write:
            first = self._prompts_kernel(prompts, group, wish, asked=asked)
        elif asked:
            raise SelectionError(
                f"attention_backend={wish.name!r} serves prompts only, beside one that leaves the "
                f"KV write to the core, which {backend.name} does not"
            )
        if first is None:
            kernel = kernels[0][1]
        else:
            kernels.insert(0, first)
            kernel = SplitKernel(cast(PromptsKernel, first[1]), kernels[1][1])
            backend = attrs.evolve(backend, name=f"{first[0].name}+{backend.name}")
        return _Made(
            backend,
            kernel,
            self._accepted(kernel.layouts(group.spec), backend, group),
            tuple(cast(WarmingKernel, own) for offered, own in kernels if offered.warms_up),
        )

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
                **self.board.handed("attention", backend.name),
            )
        )
        return kernel

    def _prompts_kernel(
        self,
        backends: Sequence[AttentionBackend],
        group: KVGroup,
        wish: BackendWish,
        *,
        asked: bool,
    ) -> tuple[AttentionBackend, AttentionKernel] | None:
        """The best backend for prompts and its kernel, if one serves here; one that is `asked` for
        by name must."""
        chosen = choose_prompts_backend(backends, group, wish, asked=asked)
        if chosen is None:
            return None
        try:
            return chosen, self._build(chosen, group)
        except UnsupportedError as error:
            if asked:
                raise
            get_logger("pegboard.runner").info(
                "attention backend not used", backend=chosen.name, reason=str(error)
            )
            return None

    def _accepted(
        self, layouts: Sequence[KVLayout], backend: AttentionBackend, group: KVGroup
    ) -> tuple[KVLayout, ...]:
        """Those that the KV connector can handle, if there is one."""
        if not layouts:
            raise SelectionError(
                f"attention backend {backend.name} offers no KV layout for {group.spec}"
            )
        wanted = self.config.kv_transfer_config
        if wanted is None:
            return tuple(layouts)
        where = f"attention backend {backend.name}, for KV group {group.index},"
        groups = form_groups(self.model.facts.kv_slots, self.config.block_size)
        connector = require_connector(self.board, wanted, groups)
        return tuple(accepted_layouts(connector, layouts, where))

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
