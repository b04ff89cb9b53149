"""What serving over HTTP costs, with an executor that computes nothing.

Run ``python tests/benchmarks/bench_server.py [STREAMS] [TOKENS] [STEP_MS]``, or ``make
bench-server``. A client in a process of its own, whose time is not counted, reads all streams of
``pegboard serve`` at once. Printed are:

* processor time per streamed token of the front end (goal 40 us) and of the engine's process, with
  steps of a length that the front end keeps up with;
* what a step of the engine takes while all streams run, in wall and processor time, beside the
  same engine in this process without a front end, and for how long of it the engine's thread was
  ready and had no processor: what is left of the difference is the engine's own.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import attrs
import psutil

from pegboard import EngineConfig, SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.engine.build import build_core
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.null_executor import NullExecutor

GOAL_US = 40.0
CONTEXT = 2048
PROMPT = [5] * 32
SHARES = (0.2, 0.8)
COUNT = re.compile(rb'"completion_tokens":(\d+)')


Read = tuple[int, int, float, float]


@attrs.frozen
class Load:
    """What is asked for."""

    streams: int
    tokens: int
    step_ms: float


@attrs.frozen
class Run:
    """Figures of one run."""

    tokens: int
    frames: int
    wall: float
    """Seconds."""
    front: float
    """Processor seconds of the front end."""
    engine: float
    """The same of the engine's process."""
    step: float
    """Seconds of wall time from step to step while all streams run."""
    starved: float
    """Seconds that the engine's thread was ready to run and had no processor."""


@attrs.frozen
class Alone:
    """Figures of the engine without a front end."""

    step: float
    """Seconds of wall time per step."""
    used: float
    """Processor seconds per step."""


def settings(streams: int) -> dict[str, int]:
    return {
        "max_model_len": CONTEXT,
        "max_num_seqs": streams,
        "max_num_batched_tokens": 64 * streams,
        "num_gpu_blocks_override": streams * CONTEXT // 16 + 1,
    }


def alone(load: Load) -> Alone:
    """The engine in this process, from the second step on."""
    config = EngineConfig(model="null", **settings(load.streams))  # type: ignore[arg-type]
    core, _ = build_core(config, NullExecutor(load.step_ms / 1e3), CONTEXT)
    params = SamplingParams(temperature=0.0, max_tokens=load.tokens, ignore_eos=True)
    for number in range(load.streams):
        request = EngineRequest(str(number), PROMPT, params, seed=0, max_tokens=load.tokens)
        core.add(request)
    core.step()
    begin, before, steps = time.perf_counter(), time.process_time(), 0
    while core.has_work():
        core.step()
        steps += 1
    wall, used = time.perf_counter() - begin, time.process_time() - before
    core.close()
    return Alone(wall / steps, used / steps)


# The client, in a process of its own


async def read_stream(port: int, tokens: int) -> Read:
    """Tokens and frames of one stream, and when the frames came that are a fifth and four fifths of
    as many as tokens; raw, since a client library would take longer than the server."""
    body = json.dumps(
        {
            "prompt": PROMPT,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head % len(body) + b"\r\n" + body)
    frames, last, times = 0, b"", [0.0, 0.0]
    while data := await reader.read(1 << 16):
        frames += data.count(b"data: ")
        last = (last + data)[-2000:]
        for place, share in enumerate(SHARES):
            if not times[place] and frames >= share * tokens:
                times[place] = time.perf_counter()
    writer.close()
    return int(COUNT.findall(last)[-1]), frames - 2, times[0], times[1]


async def read_all(port: int, load: Load) -> list[Read]:
    return list(
        await asyncio.gather(*(read_stream(port, load.tokens) for _ in range(load.streams)))
    )


def client() -> None:
    """Prints what `read_all` found."""
    port, streams, tokens = map(int, sys.argv[2:])
    print(json.dumps(asyncio.run(read_all(port, Load(streams, tokens, 0.0)))))


# The server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(model: Path, port: int, load: Load) -> subprocess.Popen[bytes]:
    options = [f"{name}={value}" for name, value in settings(load.streams).items()]
    step = f"testkit.null_step_ms={load.step_ms}"
    words = ["serve", str(model), "--port", str(port), "--distributed-executor-backend", "null"]
    words += ["--plugin-config", step, "--platform", "null"]
    words += [word for option in options for word in ("-o", option)]
    code = "import sys; from pegboard.cli import main; sys.exit(main())"
    process = subprocess.Popen([sys.executable, "-I", "-c", code, *words], stderr=subprocess.PIPE)
    while process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health").close()
            return process
        except OSError:
            time.sleep(0.1)
    raise SystemExit((process.stderr or sys.stdin).read())


def ask(port: int, load: Load) -> list[Read]:
    words = ["client", str(port), str(load.streams), str(load.tokens)]
    done = subprocess.run([sys.executable, "-I", __file__, *words], capture_output=True, check=True)
    return [tuple(found) for found in json.loads(done.stdout)]


def processor(process: psutil.Process) -> float:
    used: Any = process.cpu_times()
    return float(used.user + used.system)


def starved(process: psutil.Process) -> float:
    """Seconds that the process's main thread waited for a processor; 0 where nobody tells."""
    try:
        told = Path(f"/proc/{process.pid}/task/{process.pid}/schedstat").read_text()
    except OSError:
        return 0.0
    return int(told.split()[1]) / 1e9


def step_of(found: list[Read], load: Load) -> float:
    """Seconds from step to step in the middle of most streams."""
    low, high = SHARES
    return statistics.median((f[3] - f[2]) / ((high - low) * load.tokens) for f in found)


def through(folder: Path, load: Load) -> Run:
    """The same over HTTP."""
    port = free_port()
    served = start(write_tiny_model(folder / "tiny"), port, load)
    front = psutil.Process(served.pid)
    try:
        [engine] = front.children()
        ask(port, Load(load.streams, 16, 0.0))  # everything is imported and warm
        begin, before, theirs = time.perf_counter(), processor(front), processor(engine)
        waited = starved(engine)
        found = ask(port, load)
        wall = time.perf_counter() - begin
        used, its = processor(front) - before, processor(engine) - theirs
        tokens, frames = sum(f[0] for f in found), sum(f[1] for f in found)
        waited = starved(engine) - waited
        return Run(tokens, frames, wall, used, its, step_of(found, load), waited)
    finally:
        served.terminate()
        served.wait()


def main() -> None:
    words = [float(word) for word in sys.argv[1:]]
    given = (int(words[0]), int(words[1]), words[2]) if len(words) == 3 else (256, 300, 25.0)
    load = Load(*given)
    with tempfile.TemporaryDirectory() as folder:
        run = through(Path(folder), load)
    report(load, run, alone(load))


def report(load: Load, run: Run, base: Alone) -> None:
    micro, each = 1e6 / run.tokens, 1e3 * load.streams / run.tokens
    print(f"{load.streams} streams of {load.tokens} tokens, steps of {load.step_ms:g} ms")
    print(f"front end  {run.front * micro:6.1f} us a token (goal {GOAL_US:g})")
    print(f"engine     {run.engine * micro:6.1f} us a token")
    print(f"frames     {run.tokens / run.frames:6.2f} tokens a frame, {run.wall:.2f} s in all")
    print(
        f"a step     {run.step * 1e3:6.2f} ms, alone {base.step * 1e3:.2f}: "
        f"{run.step / base.step - 1:+.1%}"
    )
    print(
        f"of it      {run.engine * each:6.2f} ms of processor time, alone {base.used * 1e3:.2f}; "
        f"without a processor {run.starved * each:.2f}"
    )


if __name__ == "__main__":
    client() if sys.argv[1:2] == ["client"] else main()
