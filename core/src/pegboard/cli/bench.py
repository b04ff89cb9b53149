"""``pegboard bench latency``: measure an engine in this process."""

from __future__ import annotations

import json
import random
import statistics
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pegboard.api.params import MAX_COUNT, SamplingParams
from pegboard.cli.options import (
    BackendOption,
    EventsOption,
    ExceptOption,
    LockOption,
    PlatformOption,
    PluginConfigOption,
    RanksOption,
    StrictOption,
    TransferOption,
    UnsafeOption,
    engine_flags,
    engine_options,
    loading_bar,
)
from pegboard.errors import ConfigError

if TYPE_CHECKING:
    from pegboard.engine.llm import LLM


def latency(
    model: Annotated[str, typer.Argument(help="A GGUF file, a checkpoint directory or a hub id.")],
    batch_size: Annotated[int, typer.Option(help="Requests sent at once.")] = 1,
    input_len: Annotated[int, typer.Option(help="Prompt tokens of each.")] = 1024,
    output_len: Annotated[int, typer.Option(help="Output tokens of each.")] = 257,
    runs: Annotated[int, typer.Option(help="Timed runs; the median is reported.")] = 3,
    warmup: Annotated[int, typer.Option(help="Runs before the timed ones.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="auto (default), float32 (exact), bfloat16 or float16.")
    ] = None,
    platform: PlatformOption = None,
    attention_backend: BackendOption = None,
    tensor_parallel_size: RanksOption = None,
    kv_events_config: EventsOption = None,
    kv_transfer_config: TransferOption = None,
    strict_plugins: StrictOption = None,
    plugins_lock: LockOption = None,
    no_plugins_except: ExceptOption = None,
    plugin_config: PluginConfigOption = None,
    unsafe_plugins: UnsafeOption = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", "-o", help="Engine settings, name=value.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """The closed workload: a batch at once, and a twin with one output token for the prefill time.

    TPOT is the difference of the two times over the further output tokens; the twin's time is the
    batch's TTFT.
    """
    from pegboard.engine.llm import LLM

    least = {"batch-size": 1, "input-len": 1, "output-len": 2, "runs": 1, "warmup": 0}
    given = (batch_size, input_len, output_len, runs, warmup)
    for (name, bound), value in zip(least.items(), given, strict=True):
        if not bound <= value <= MAX_COUNT:
            raise ConfigError(f"--{name} {value} is not allowed: from {bound} to {MAX_COUNT}")
    flags = engine_flags(locals())
    settings = {
        "max_model_len": input_len + output_len,
        "max_num_seqs": max(batch_size, 8),
        **engine_options(option or [], flags),
    }
    with loading_bar(quiet=as_json) as progress, LLM(model, progress=progress, **settings) as llm:
        progress.finish()
        figures = closed_workload(llm, batch_size, input_len, output_len, runs, warmup)
    print(json.dumps(figures) if as_json else _table(figures))


def closed_workload(
    llm: LLM, batch: int, input_len: int, output_len: int, runs: int, warmup: int
) -> dict[str, Any]:
    """Run the workload; times in seconds. No prompt is ever used twice, so the prefix cache cannot
    help."""
    draws = random.Random(0)
    first: list[float] = []
    whole: list[float] = []
    for number in range(warmup + runs):
        one = _timed(llm, draws, batch, input_len, 1)
        many = _timed(llm, draws, batch, input_len, output_len)
        if number >= warmup:
            first.append(one)
            whole.append(many)
    ttft, total = statistics.median(first), statistics.median(whole)
    return {
        "batch": batch,
        "input_len": input_len,
        "output_len": output_len,
        "runs": runs,
        "ttft_s": ttft,
        "tpot_s": (total - ttft) / (output_len - 1),
        "total_s": total,
        "prefill_tok_s": batch * input_len / ttft,
        "decode_tok_s": batch * (output_len - 1) / (total - ttft),
    }


def _timed(llm: LLM, draws: random.Random, batch: int, input_len: int, output_len: int) -> float:
    vocabulary = llm.model.facts.vocab_size
    prompts = [[draws.randrange(vocabulary) for _ in range(input_len)] for _ in range(batch)]
    params = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
    begin = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    return time.perf_counter() - begin


def _table(figures: dict[str, Any]) -> str:
    rows = (
        ("requests at once", f"{figures['batch']}"),
        ("tokens in / out", f"{figures['input_len']} / {figures['output_len']}"),
        ("TTFT of the batch", f"{1000 * figures['ttft_s']:.1f} ms"),
        ("TPOT", f"{1000 * figures['tpot_s']:.2f} ms"),
        ("prefill", f"{figures['prefill_tok_s']:.0f} tok/s"),
        ("decode", f"{figures['decode_tok_s']:.1f} tok/s"),
    )
    return "\n".join(f"{name:<18} {value}" for name, value in rows)
