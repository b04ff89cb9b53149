"""Where the time of a decode step and of a prefill step goes, from the device's own clock."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from gpubench.ceilings import Ceilings
from gpubench.models import Sizes
from gpubench.workloads import Driver
from pegboard import SamplingParams

GROUPS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(words, re.IGNORECASE)
    for name, words in {
        "attention": r"attention|attn|flash|fmha|paged|sdpa|mha_|merge_split|split_kv",
        "rope": r"rope|rotary|store_kv|reshape_and_cache",
        "sampling": r"argmax|sampl|choose|top_?[kp]|philox|penalt|logprob|log_softmax|multinomial",
        "norm": r"norm",
        "gemm": r"gemm|gemv|cutlass|xmma|nvjet|cublas|matmul|matvec|linear|split_?k|expert|moe"
        r"|aten::(mm|addmm|bmm)\b",
    }.items()
}
"""By names of kernels; the first that fits. What fits none is ``other``."""
DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
LISTED = 8


@attrs.frozen
class Piece:
    """One thing that the device did; microseconds."""

    name: str
    start: float
    length: float

    @property
    def end(self) -> float:
        return self.start + self.length


@attrs.frozen
class Profile:
    """A window of `steps` steps."""

    name: str
    steps: int
    seconds: float
    """Of one step, on the host's clock."""
    idle: float
    """Share of the time from the first piece of work to the last in which nothing ran."""
    groups: Mapping[str, float]
    """Share of the busy time."""
    top: Sequence[tuple[str, float]]
    """The kernels that take most, with their shares of the busy time."""
    launches: float
    """Pieces of work per step."""
    read: float
    """Bytes that a step must read at least."""
    flops: float


def profile_decode(driver: Driver, sizes: Sizes, batch: int, item: tuple[int, int]) -> Profile:
    """Steps of `batch` requests behind 1024 tokens each (fewer, where the context is shorter);
    `item` are bytes of an element of the weights and of the cache."""
    prompt, settle, steps = min(1024, driver.llm.model.max_model_len // 4), 8, 16
    engine = driver.llm.engine
    params = SamplingParams(temperature=0.0, max_tokens=4 * (settle + steps), ignore_eos=True)
    made = {f"profile {number}": 0 for number in range(batch)}
    for name in made:
        engine.add_request(name, driver.ids(prompt), params)
    while min(made.values()) < settle:
        made.update((out.request_id, len(out.outputs[0].token_ids)) for out in engine.step())
    seconds, pieces = _trace(lambda: [engine.step() for _ in range(steps)])
    engine.abort_request(made)
    tokens = batch * (prompt + settle + steps // 2)
    read = sizes.weights_read(batch) * item[0] + sizes.kv_elements(tokens) * item[1]
    flops = sizes.flops(batch, tokens, batch)
    return summarise(f"decode, {batch} at {prompt}", steps, seconds / steps, pieces, (read, flops))


def profile_prefill(driver: Driver, sizes: Sizes, item: tuple[int, int]) -> Profile:
    """One full step of prompts of 1024 tokens (fewer, where the context is shorter)."""
    config = driver.llm.config
    length = min(1024, driver.llm.model.max_model_len // 4, config.max_num_batched_tokens)
    rows = max(1, config.max_num_batched_tokens // length)
    prompts = driver.prompts(rows, length)
    seconds, pieces = _trace(lambda: driver.timed(prompts, 1))
    tokens, pairs = rows * length, rows * length * (length + 1) // 2
    read = sizes.weights_read(tokens) * item[0] + sizes.kv_elements(tokens) * item[1]
    name = f"prefill, {rows} of {length}"
    return summarise(name, 1, seconds, pieces, (read, sizes.flops(tokens, pairs, rows)))


def _trace(work: Callable[[], Any]) -> tuple[float, list[Piece]]:
    """Seconds on the host, and what the device did."""
    import torch
    from torch.autograd.profiler import profile  # what `torch.profiler` drives, without its imports

    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else None
    with profile(use_cpu=not gpu, use_device=device, use_kineto=True) as profiler:
        begin = time.perf_counter()
        work()
        if gpu:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8", errors="replace"))["traceEvents"]
    return seconds, pieces_of(events, DEVICE_WORK if gpu else ("cpu_op",))


def pieces_of(events: Iterable[Mapping[str, Any]], categories: Sequence[str]) -> list[Piece]:
    """Work of these categories in order of start, without what runs inside another piece of its
    own thread or stream."""
    found = [
        (Piece(str(event["name"]), float(event["ts"]), float(event["dur"])), event.get("tid"))
        for event in events
        if event.get("ph") == "X" and event.get("cat") in categories
    ]
    found.sort(key=lambda pair: (pair[0].start, -pair[0].length))
    pieces: list[Piece] = []
    ends: dict[Any, float] = {}
    for piece, lane in found:
        if piece.end > ends.get(lane, float("-inf")):
            pieces.append(piece)
            ends[lane] = piece.end
    return pieces


def group_of(name: str) -> str:
    """Group of a kernel."""
    return next((group for group, words in GROUPS.items() if words.search(name)), "other")


def busy(pieces: Sequence[Piece]) -> float:
    """Microseconds in which at least one piece ran."""
    total, end = 0.0, float("-inf")
    for piece in pieces:
        total += max(0.0, piece.end - max(piece.start, end))
        end = max(end, piece.end)
    return total


def summarise(
    name: str, steps: int, seconds: float, pieces: Sequence[Piece], work: tuple[float, float]
) -> Profile:
    """Shares of what ran; `work` are the bytes and the operations of a step."""
    groups: dict[str, float] = defaultdict(float)
    kernels: dict[str, float] = defaultdict(float)
    whole = sum(piece.length for piece in pieces) or 1.0
    for piece in pieces:
        groups[group_of(piece.name)] += piece.length / whole
        kernels[piece.name] += piece.length / whole
    span = max(p.end for p in pieces) - pieces[0].start if pieces else 0.0
    top = sorted(kernels.items(), key=lambda pair: -pair[1])[:LISTED]
    return Profile(
        name=name,
        steps=steps,
        seconds=seconds,
        idle=1 - busy(pieces) / span if span else 1.0,
        groups=dict(sorted(groups.items(), key=lambda pair: -pair[1])),
        top=top,
        launches=len(pieces) / steps,
        read=work[0],
        flops=work[1],
    )


def show(profile: Profile, ceilings: Ceilings) -> str:
    """A short table."""
    rate, speed = profile.read / profile.seconds / 1e12, profile.flops / profile.seconds / 1e12
    floor = max(profile.read / ceilings.read, profile.flops / ceilings.gemm) / 1e9
    lines = [
        f"profile of {profile.name}: {1e3 * profile.seconds:.3f} ms a step while profiled "
        f"(floor {floor:.3f}), device idle {profile.idle:.1%}, "
        f"{profile.launches:.0f} launches a step",
        f"  must read {profile.read / 1e9:.2f} GB: {rate:.2f} TB/s, {rate / ceilings.read:.0%} of "
        f"the ceiling; must compute {profile.flops / 1e12:.2f} TFLOP: {speed:.0f} TFLOP/s, "
        f"{speed / ceilings.gemm:.0%} of the ceiling",
        "  " + ", ".join(f"{group} {share:.1%}" for group, share in profile.groups.items()),
    ]
    lines += [f"  {share:6.1%}  {group_of(name):<9}  {name[:90]}" for name, share in profile.top]
    return "\n".join(lines)
