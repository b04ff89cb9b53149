"""What streaming from an engine in its own process costs the front end, with an executor that
computes nothing.

Run ``python tests/benchmarks/bench_async.py [STREAMS] [TOKENS]``, or ``make bench-async``. Every
stream has a reader of its own that looks at each state, as a server does. Printed are:

* at full speed, tokens per second of the engine alone in this process, and through its own process
  with readers (who then find several tokens at once, since the engine is faster than they);
* with steps of a length that the readers keep up with, processor time per streamed token of the
  front end (goal 20 us) and of the engine's process, beside that of the engine alone in this
  process, and how much longer the engine takes than its steps alone.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

import attrs
import psutil

from pegboard import AsyncLLM, EngineConfig, SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.engine.build import build_core
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.null_executor import NullExecutor

GOAL_US = 20.0
STEP_MS = 25.0
PROMPT = [5] * 32
CONTEXT = 4096


@attrs.frozen
class Run:
    """Figures of one run."""

    tokens: int
    states: int
    wall: float
    """Seconds."""
    front: float
    """Processor seconds of this process."""
    engine: float
    """The same of the engine's process."""


def params(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def settings(streams: int) -> dict[str, int]:
    return {
        "max_model_len": CONTEXT,
        "max_num_seqs": streams,
        "max_num_batched_tokens": 64 * streams,
        "num_gpu_blocks_override": streams * CONTEXT // 16 + 1,
    }


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def alone(streams: int, tokens: int, step_ms: float) -> Run:
    """The engine in this process, without a front end."""
    config = EngineConfig(model="null", **settings(streams))  # type: ignore[arg-type]
    core, _ = build_core(config, NullExecutor(step_ms / 1e3), CONTEXT)
    for number in range(streams):
        core.add(EngineRequest(str(number), PROMPT, params(tokens), seed=0, max_tokens=tokens))
    begin, before, told = time.perf_counter(), processor_seconds(), 0
    while core.has_work():
        told += sum(len(output.token_ids) for output in core.step())
    wall, used = time.perf_counter() - begin, processor_seconds() - before
    core.close()
    return Run(told, told, wall, used, used)


async def read(llm: AsyncLLM, tokens: int) -> tuple[int, int]:
    """Tokens and states of one stream."""
    shown = states = 0
    async for output in llm.generate({"prompt_token_ids": PROMPT}, params(tokens)):
        answer = output.outputs[0]
        shown += len(answer.text[shown:])
        states += 1
        count = len(answer.token_ids)
    return count, states


async def stream(llm: AsyncLLM, streams: int, tokens: int) -> Run:
    process = psutil.Process(llm.client.pid)
    begin, before, theirs = time.perf_counter(), processor_seconds(), process.cpu_times()
    found = await asyncio.gather(*(read(llm, tokens) for _ in range(streams)))
    wall, used, now = time.perf_counter() - begin, processor_seconds() - before, process.cpu_times()
    engine = now.user + now.system - theirs.user - theirs.system
    return Run(sum(f[0] for f in found), sum(f[1] for f in found), wall, used, engine)


def through(folder: Path, streams: int, tokens: int, step_ms: float) -> Run:
    """The same with a process of its own, and readers."""
    llm = AsyncLLM(
        str(write_tiny_model(folder)),
        distributed_executor_backend="null",
        plugin_config={"testkit": {"null_step_ms": step_ms}},
        **settings(streams),
    )
    try:
        asyncio.run(stream(llm, streams, 16))  # everything is imported and warm
        return asyncio.run(stream(llm, streams, tokens))
    finally:
        llm.close()


def microseconds(seconds: float, tokens: int) -> str:
    return f"{seconds / tokens * 1e6:.1f} us"


def main() -> None:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    tokens = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with tempfile.TemporaryDirectory() as folder:
        fast, free = alone(streams, tokens, 0.0), through(Path(folder), streams, tokens, 0.0)
        slow, kept = (
            alone(streams, tokens, STEP_MS),
            through(Path(folder), streams, tokens, STEP_MS),
        )
    print(f"{streams} streams of {tokens} tokens")
    print(
        f"full speed  {fast.tokens / fast.wall:,.0f} tokens/s alone, "
        f"{free.tokens / free.wall:,.0f} through a process with readers "
        f"({free.tokens / free.states:.1f} tokens a state)"
    )
    print(
        f"steps of {STEP_MS:g} ms  front end {microseconds(kept.front, kept.tokens)} a token "
        f"(goal {GOAL_US:g}; {kept.tokens / kept.states:.2f} tokens a state); "
        f"engine {microseconds(kept.engine, kept.tokens)}, alone "
        f"{microseconds(slow.engine, slow.tokens)}"
    )
    print(f"{kept.wall:.2f} s beside {slow.wall:.2f} s alone: {kept.wall / slow.wall - 1:+.1%}")


if __name__ == "__main__":
    main()
