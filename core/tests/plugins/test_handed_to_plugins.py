"""A whole engine whose every part is of one plugin: each part gets the plugin's own things."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.errors import PluginError
from pegboard.plugins import LoadPolicy, load_plugins
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.scripted_connector import Script

HOOKS = """
import attrs
from pegboard.api.attention import AttentionBackend
from pegboard.api.checkpoint import CheckpointSource
from pegboard.api.connector import KVConnector
from pegboard.api.events import EventPublisher
from pegboard.api.executor_class import ExecutorClass
from pegboard.api.hooks import hookimpl
from pegboard.api.logits import LogitsProcessor
from pegboard.api.platform import Platform
from pegboard.api.quant import QuantFormat
from pegboard.api.scheduler_class import SchedulerClass
from pegboard.api.stat_logger import StatLogger
from pegboard.api.tracer import Tracer
from pegboard.api.tokenizer import TokenizerClass
from pegboard.testing.connectors import SCRIPTED_CONNECTOR
from pegboard.testing.families import TINY_FAMILY

PEGBOARD_API = dict_of_levels
PEGBOARD_OVERRIDE = {"model": ["hf:PegboardTiny"], "checkpoint": ["hf"]}
PEGBOARD_ORDER = {"after": ["testkit"]}


@attrs.frozen
class Settings:
    depth: int = 1


@hookimpl
def pegboard_settings():
    return Settings


@hookimpl
def pegboard_attention_backends():
    return [AttentionBackend("odd", "odd_lazy:kernel", priority=99)]


@hookimpl
def pegboard_checkpoint_sources():
    probe = "pegboard.weights.safetensors_source:probe"
    return [CheckpointSource("hf", probe, "odd_lazy:open_it", takes_settings=True)]


@hookimpl
def pegboard_connectors():
    halves = {"scheduler": "odd_lazy:scheduler_half", "worker": "odd_lazy:worker_half"}
    return [attrs.evolve(SCRIPTED_CONNECTOR, name="odd", **halves)]


@hookimpl
def pegboard_event_publishers():
    return [EventPublisher("odd", "odd_lazy:publisher")]


@hookimpl
def pegboard_model_families():
    parts = {"config": "odd_lazy:config", "build": "odd_lazy:build"}
    return [attrs.evolve(TINY_FAMILY, name="odd", **parts)]


@hookimpl
def pegboard_platforms():
    probe = "pegboard.testing.null_platform:probe"
    return [Platform("odd", probe, "odd_lazy:runtime", takes_settings=True)]


@hookimpl
def pegboard_quant_formats():
    return [QuantFormat("odd", "odd_lazy:quantizer")]


@hookimpl
def pegboard_schedulers():
    return [SchedulerClass("odd", "odd_lazy:scheduler", max_in_flight=2, transfers=True)]


@hookimpl
def pegboard_executors():
    return [ExecutorClass("odd", "odd_lazy:executor")]


@hookimpl
def pegboard_logits_processors():
    return [LogitsProcessor(name="odd", build="odd_lazy:Rows")]


@hookimpl
def pegboard_stat_loggers():
    return [StatLogger("odd", "odd_lazy:Recorder", "odd_lazy:Front")]


@hookimpl
def pegboard_tracers():
    return [Tracer("odd", "odd_lazy:Spans")]


@hookimpl
def pegboard_tokenizers():
    return [TokenizerClass("odd", "odd_lazy:tokenizer")]
"""

LAZY = """
from pegboard.api.descriptor import LazyRef
from pegboard.api.events import PublisherStats
from pegboard.testing import scripted_connector, tiny, tiny_config
from pegboard.testing.null_platform import NullRuntime

seen, identities = {}, []


def note(kind, ctx):
    seen[kind] = ctx.settings
    ctx.metrics.counter("made", "Parts that were made").add()


def kernel(ctx):
    note("attention", ctx)
    return LazyRef("pegboard_attention_torch.kernel:TorchKernel").load()(ctx)


def open_it(path, settings):
    seen["checkpoint"] = settings
    return LazyRef("pegboard.weights.safetensors_source:open_directory").load()(path)


def scheduler_half(ctx):
    note("scheduler half", ctx)
    identities.append(ctx.identity)
    return scripted_connector.make_scheduler(ctx)


def worker_half(ctx):
    note("worker half", ctx)
    identities.append(ctx.identity)
    return scripted_connector.make_worker(ctx)


class Publisher:
    def publish(self, batch): pass

    def stats(self): return PublisherStats()

    def close(self): pass


def publisher(ctx):
    note("events", ctx)
    return Publisher()


def config(source):
    seen["config"] = source.settings
    return tiny_config.read_tiny(source)


def build(ctx):
    note("model", ctx)
    return tiny.build(ctx)


def runtime(index, settings):
    seen["platform"] = settings
    return NullRuntime(index)


class Quantizer:
    def method(self, layer): return None


def quantizer(ctx):
    note("quant", ctx)
    return Quantizer()


def scheduler(ctx):
    note("scheduler", ctx)
    return ctx.build("token-budget")


def executor(ctx):
    note("executor", ctx)
    return ctx.build("local")


class Rows:
    def __init__(self, ctx): note("logits", ctx)

    def added(self, row): pass

    def removed(self, slot): pass

    def apply(self, call): return call.logits


class Recorder:
    def __init__(self, ctx): note("stat logger", ctx)

    def record(self, stats): pass

    def close(self): pass


class Front(Recorder):
    def __init__(self, ctx): note("stat logger, front", ctx)

    added = tokens = finished = scheduler = Recorder.record


class Spans(Front):
    def __init__(self, ctx): note("tracer", ctx)


def tokenizer(ctx):
    note("tokenizer", ctx)
    return LazyRef("pegboard.text.tokenizer:Tokenizer").load().from_spec(ctx.spec)
"""
LEVELS = (
    *("attention", "checkpoint", "connector", "events", "executor", "logits", "model"),
    *("platform", "quant", "scheduler", "stat_logger", "tokenizer", "tracer"),
)


@pytest.fixture
def lazy(site: Any, tmp_path: Path) -> Iterator[Any]:
    """The module of the lazy parts, as the engine imports it."""
    levels = repr(dict.fromkeys(LEVELS, 0))
    (site.folder / "odd_lazy.py").write_text(LAZY)
    site.add_source(HOOKS.replace("dict_of_levels", levels))
    write_tiny_model(tmp_path / "model", seed=5)
    yield lambda: sys.modules["odd_lazy"]
    sys.modules.pop("odd_lazy", None)


def engine(tmp_path: Path, depth: int, **options: Any) -> LLM:
    policy = LoadPolicy(plugin_config={"odd": {"depth": depth}})
    board = load_plugins(environ={}, policy=policy)
    return LLM(
        str(tmp_path / "model"),
        board=board,
        platform="odd",
        attention_backend="odd",
        quantization="odd",
        scheduler_cls="odd",
        distributed_executor_backend="odd",
        logits_processors=["odd"],
        stat_loggers=["odd"],
        tracer="odd",
        tokenizer_mode="odd",
        kv_events_config={"enable_kv_cache_events": True, "publisher": "odd"},
        kv_transfer_config={
            "kv_connector": "odd",
            "kv_connector_extra_config": {"script": Script()},
        },
        max_model_len=64,
        num_gpu_blocks_override=16,
        **options,
    )


def test_every_part_gets_the_settings_and_the_metrics_of_its_plugin(
    lazy: Any, tmp_path: Path
) -> None:
    with engine(tmp_path, 4) as llm:
        params = SamplingParams(max_tokens=3, temperature=0.0)
        (result,) = llm.generate([[3, 4, 5]], params, use_tqdm=False)
        assert len(result.outputs[0].token_ids) == 3
        made = llm.board.metrics.get("pegboard_plugin_odd_made")
        (used,) = [row["used"] for row in llm.plugins() if row["id"] == "odd"]
    module = lazy()
    assert set(module.seen) == {
        *("attention", "checkpoint", "config", "events", "model", "platform", "quant"),
        *("scheduler", "scheduler half", "worker half"),
        *("executor", "logits", "stat logger", "stat logger, front", "tokenizer", "tracer"),
    }
    assert [settings.depth for settings in module.seen.values()] == [4] * 16
    assert made is not None and made.value == 13  # type: ignore[attr-defined]
    named = {f"{surface}:odd" for surface in LEVELS} - {"checkpoint:odd"}
    assert set(used) == {"checkpoint:hf", *named}


def test_what_is_stored_outside_is_told_apart_by_plugins_versions_and_settings(
    lazy: Any, tmp_path: Path
) -> None:
    found = []
    for depth in (4, 4, 5):
        engine(tmp_path, depth).close()
        first, second = lazy().identities[-2:]
        assert first == second
        found.append(first)
    same, again, other = found
    assert same == again != other
    (line,) = same["plugins"]
    assert line.startswith("plugins:odd of odd 1.0 ")
    assert same["connector"] == [line]
    rest = [{k: v for k, v in one.items() if "plugin" not in k} for one in (same, other)]
    assert rest[0].pop("connector") != rest[1].pop("connector")
    assert rest[0] == rest[1]


def test_a_lazy_part_that_patches_the_core_stops_the_engine(
    lazy: Any, site: Any, tmp_path: Path
) -> None:
    patch = "\nfrom pegboard.kv import KVManager\nKVManager.free = print\n"
    (site.folder / "odd_lazy.py").write_text(LAZY + patch)
    with pytest.raises(PluginError, match=r"changes pegboard\.kv\.manager\.KVManager\.free"):
        engine(tmp_path, 4)
    from pegboard.kv import KVManager

    assert KVManager.free is not print
