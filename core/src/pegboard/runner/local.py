"""The executor of one process: it opens the device, loads the model and owns its runner."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import torch

from pegboard.api.executor import ExecutorContext, MemoryProfile, Pending
from pegboard.api.executor_sleep import SleepPart
from pegboard.api.kv import KVCacheConfig, KVSlot
from pegboard.api.model import LanguageModel
from pegboard.api.step import StepPlan
from pegboard.api.transfer import ConnectorLink
from pegboard.config.engine import EngineConfig
from pegboard.config.fit import DeviceMemory, check_fit
from pegboard.config.logits import LogitsRoster, make_roster
from pegboard.config.model import ResolvedModel
from pegboard.config.served_tokenizer import served_tokenizer
from pegboard.errors import CheckpointError
from pegboard.hostmemory import release_free_memory
from pegboard.nn import Weighted
from pegboard.runner.connect import connect_worker, own_tensors
from pegboard.runner.identity import engine_identity, parts_of
from pegboard.runner.memory import allocating, step_peak
from pegboard.runner.place import RankPlace
from pegboard.runner.runner import ModelRunner
from pegboard.runner.setup import OpenedDevice, open_device
from pegboard.runner.slots import Limits
from pegboard.runner.storage import allocate_storage
from pegboard.runner.thread import StepThread
from pegboard.runner.threads import few_threads
from pegboard.runner.transfers import Worker
from pegboard.runner.warm_up import warm_up_kernels, warm_up_rows
from pegboard.weights.build import load_model
from pegboard.weights.checksum import WeightSums
from pegboard.weights.random import DUMMY_SCHEME

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["LocalExecutor", "build_local"]


class LocalExecutor:
    """`api.executor.Executor` in this process, on one device.

    On a device whose calls return when their work is done, steps run on a thread of their own,
    unless ``async_scheduling`` is False. Only it touches the runner once steps run.
    """

    def __init__(
        self,
        board: Board,
        config: EngineConfig,
        model: ResolvedModel,
        *,
        progress: Callable[[int, int], Any] | None = None,
        place: RankPlace = RankPlace(),  # noqa: B008  frozen
    ) -> None:
        """`progress` is called with (bytes loaded, bytes in all) while weights stream in; `place`
        is this process's among several ranks, which all make the same calls."""
        self._board = board
        self._config = config
        self._resolved = model
        self._progress = progress
        self._place = place
        self._opened: OpenedDevice | None = None
        self._model: LanguageModel | None = None
        self._runner: ModelRunner | None = None
        self._thread: StepThread | None = None
        self._worker: Worker | None = None
        """Of the KV connector."""
        self._cache: KVCacheConfig | None = None
        self._sums: WeightSums | None = None
        """Of the weights; only a KV connector needs them."""
        self._weights = ""
        """What they came to."""
        self._formats: set[str] = set()
        """Quantisations that own layers."""

    @property
    def max_in_flight(self) -> int:
        """2: sampled tokens stay where the next step reads them."""
        return 2

    @property
    def device(self) -> torch.device:
        """That of the model, once it is loaded."""
        return self._device().device

    def load(self) -> None:
        """Choose device, backends and ops, check that the model fits, then build and fill it.

        Raises `MissingPluginError` or `SelectionError` if no platform or backend serves,
        `ResourceError` before any weight is read if the model cannot fit, and what
        `pegboard.weights.build.load_model` raises.
        """
        self._opened = opened = open_device(self._board, self._config, self._resolved, self._place)
        memory = opened.runtime.memory
        check_fit(
            opened.model, self._config, DeviceMemory(memory.total_bytes(), memory.free_bytes())
        )
        self._read_weights()

    def _read_weights(self) -> None:
        opened = self._device()
        wanted = self._config.kv_transfer_config is not None
        if wanted and self._config.load_format != "dummy":
            self._sums = WeightSums(opened.device)
        with few_threads(opened.model.weight_bytes):
            self._model = load_model(
                self._board,
                self._config,
                opened.model,
                device=opened.device,
                dtype=getattr(torch, opened.model.dtype),
                ops=opened.ops,
                platform_facts=opened.runtime.facts(),
                progress=self._progress,
                parallel=opened.parallel,
                sums=self._sums,
                formats=self._formats,
            )

    def kv_slots(self) -> tuple[KVSlot, ...]:
        return self._device().model.facts.kv_slots

    def profile(self) -> MemoryProfile:
        """Measure a dummy run of the largest step.

        On a CPU, where that would take seconds, a small step gives an upper bound.
        """
        opened = self._device()
        memory = opened.runtime.memory
        warm_up_kernels(opened, cast(torch.nn.Module, self._model))
        runner = self._make_runner(KVCacheConfig(groups=opened.groups, num_blocks=1))
        exact = opened.device.type != "cpu"
        with few_threads(opened.model.weight_bytes):
            peak = step_peak(runner.dummy, self._limits(), exact=exact, measure=memory.peak_bytes)
        return MemoryProfile(
            total=memory.total_bytes(),
            free=memory.free_bytes(),
            weights=self._weight_bytes(),
            peak_activations=peak,
            cache_limit=memory.cache_limit(),
        )

    def allocate(self, cache: KVCacheConfig) -> None:
        board, config, model = self._board, self._config, self._device().model
        processors = make_roster(board, config).telling(
            model.eos_token_ids, functools.cache(lambda: served_tokenizer(board, config, model))
        )
        self._cache = cache
        self._runner = runner = self._make_runner(cache, processors)
        asynchronous = self._device().runtime.execution.asynchronous
        if self._config.async_scheduling is not False and not asynchronous:
            self._thread = StepThread(runner.execute)

    def warm_up(self) -> None:
        """Run what steps there may be once, so that no request pays for what is made then."""
        if self._thread is None:
            self._warm_up()
        else:  # what is made per thread must be made there
            self._thread.submit(self._warm_up).result()

    def _warm_up(self) -> None:
        runner = self._ready()
        execution = self._device().runtime.execution
        for rows in warm_up_rows(self._limits(), every_size=execution.asynchronous):
            runner.dummy(rows.counts, rows.starts)
        if not self._config.enforce_eager:
            runner.record()
        execution.synchronize()

    def execute(self, plan: StepPlan) -> Pending:
        if self._thread is not None:
            return self._thread.execute(plan)
        return self._ready().execute(plan)

    def connect(self) -> ConnectorLink:
        runner, opened = self._ready(), self._device()
        wanted = self._config.kv_transfer_config
        assert wanted is not None, "there is no connector"
        layouts = [attention.layout for attention in opened.attention]
        weights = self._weights = self._take_digest()
        worker, link = connect_worker(
            self._board,
            wanted,
            runner.cache,
            runner.storage,
            engine_identity(
                opened.model,
                self._config,
                runner.cache,
                layouts,
                weights,
                self._board.signatures(parts_of(self._board, opened, self._formats)),
            ),
            opened.device,
        )
        runner.connect(worker)
        self._worker = worker
        return link

    def _take_digest(self) -> str:
        """What stands for the weights' bytes; the stored tensors that were known are forgotten."""
        sums, self._sums = self._sums, None
        return DUMMY_SCHEME if sums is None else sums.digest()

    def sleep_problem(self) -> str | None:
        opened = self._device()
        if opened.device.type == "cpu":
            return None
        return (
            f"platform {opened.platform!r} keeps memory of its own, and only what lies in the "
            "host's is given back"
        )

    def sleep(self, level: int) -> None:
        """The runner goes, with the cache and its thread; weights are in the host's memory."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        if self._worker is not None:
            self._worker.detach()
        self._runner = None
        if level > 1:
            self._model = None
        gc.collect()
        release_free_memory()

    def wake(self, part: SleepPart) -> None:
        if part == "kv_cache":
            self._wake_cache()
        elif self._model is None:
            self._read_weights()
            if self._worker is not None and self._take_digest() != self._weights:
                self._model = None
                raise CheckpointError(
                    f"{self._resolved.path}: the weights changed during sleep, and the KV "
                    "connector's store holds blocks of the old ones; start again"
                )
            release_free_memory()

    def _wake_cache(self) -> None:
        assert self._cache is not None, "allocate() comes first"
        try:
            self.allocate(self._cache)
            self.warm_up()
            if self._worker is not None:
                runner = self._ready()
                own = own_tensors(self._cache, runner.storage)
                self._worker.attach(own, self._cache, self.device)
                runner.connect(self._worker)
        except BaseException:
            self.sleep(1)
            raise

    def facts(self) -> dict[str, Any]:
        opened = self._device()
        return {
            "platform": opened.platform,
            "device": opened.runtime.facts(),
            "dtype": opened.model.dtype,
            "attention": [attention.backend.name for attention in opened.attention],
            "kv_layouts": [attention.layout.name for attention in opened.attention],
            "op_versions": self._config.op_versions,
            "ops": opened.ops.choices(),
            **(self._runner.recorded() if self._runner is not None else {}),
        }

    def close(self) -> None:
        """Wait for the step that runs, then let go of model, cache and device."""
        if self._thread is not None:
            self._thread.close()
            self._thread = None
        if self._worker is not None:
            self._worker.close()
        if self._opened is not None and self._opened.parallel.comm is not None:
            self._opened.parallel.comm.close()
        self._runner = self._model = self._opened = None

    def _device(self) -> OpenedDevice:
        assert self._opened is not None, "load() comes first"
        return self._opened

    def _ready(self) -> ModelRunner:
        assert self._runner is not None, "allocate() comes first"
        return self._runner

    def _limits(self) -> Limits:
        model = self._device().model
        return Limits(
            max_rows=self._config.max_num_seqs,
            max_tokens=self._config.max_num_batched_tokens,
            max_model_len=model.max_model_len,
            vocab_size=model.facts.vocab_size,
        )

    def _make_runner(
        self, cache: KVCacheConfig, processors: LogitsRoster | None = None
    ) -> ModelRunner:
        opened = self._device()
        assert self._model is not None, "load() comes first"
        assert [group.spec for group in cache.groups] == [group.spec for group in opened.groups]
        layouts = [attention.layout for attention in opened.attention]
        with allocating(self._limits()):
            return ModelRunner(
                self._model,
                limits=self._limits(),
                cache=cache,
                attention=opened.attention,
                storage=allocate_storage(self.kv_slots(), cache, layouts, opened.device),
                device=opened.device,
                ops=opened.ops,
                execution=opened.runtime.execution,
                processors=processors,
            )

    def _weight_bytes(self) -> int:
        model = cast(torch.nn.Module, self._model)
        leaves = (module for module in model.modules() if isinstance(module, Weighted))
        plain = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
        return plain + sum(leaf.runtime_bytes() for leaf in leaves)


def build_local(ctx: ExecutorContext) -> LocalExecutor:
    """Entry of the core's descriptor ``local``."""
    return LocalExecutor(ctx.board, ctx.config, ctx.model, progress=ctx.progress)
