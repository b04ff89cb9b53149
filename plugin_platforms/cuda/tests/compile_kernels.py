"""Compile, for compute capability 9.0 and without a GPU, what the ops would launch.

    python compile_kernels.py [part of a case's name ...]

``TRITON_INTERPRET`` must not be set. Prints a line for each kernel: case, kernel, registers, bytes
of stack, bytes of shared memory.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from pegboard.api.kv import FullAttentionSpec, KVLayout, KVTensors

_COMPILER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class HostDriver:
    """As much of a driver as compiling asks for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def usage(cubin: bytes) -> tuple[int, int, int]:
    """Registers, bytes of stack and of static shared memory."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_COMPILER / "cuobjdump"), "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return tuple(  # type: ignore[return-value]
        int(re.search(rf"{key}:(\d+)", said).group(1))  # type: ignore[union-attr]
        for key in ("REG", "STACK", "SHARED")
    )


def capture(report: Callable[[Any], None]) -> None:
    """From now on launches compile only; `report` gets each kernel."""
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **how: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **how)
        report(kernel)
        return kernel

    JITFunction.run = compile_only
    triton.runtime.driver.set_active(HostDriver())


BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


def heads(
    parts: int,
    kv_heads: int,
    size: int,
    rotated: int,
    norm: bool,
    tokens: int = 3,
    stored: torch.dtype = BF16,
) -> None:
    from pegboard_platform_cuda import ops

    layout = KVLayout("pages", ("block", "kv", "head", "token", "dim"))
    spec = FullAttentionSpec(kv_heads, size, str(stored).removeprefix("torch."))
    kv = KVTensors("0", 0, spec, layout, torch.empty(layout.shape(spec, 4, 16), dtype=stored))
    packed = torch.empty(tokens, parts, size, dtype=BF16)
    index = torch.zeros(tokens, dtype=torch.int64)
    table = torch.empty(64, rotated)
    norms = (torch.empty(size), torch.empty(size), 1e-6) if norm else None
    scales = (torch.ones(()), torch.ones(()))
    ops.qk_norm_rope_store(packed, kv_heads, norms, index, table, kv, index, scales)
    ops.rope(packed, index, table)
    ops.store_kv(packed[:, :kv_heads], packed[:, :kv_heads], kv, index, scales)


def rows(size: int, dtype: torch.dtype = BF16, count: int = 3) -> None:
    from pegboard_platform_cuda import ops

    x, weight = torch.empty(count, size, dtype=dtype), torch.empty(size, dtype=dtype)
    ops.rms_norm(x, weight, 1e-5)
    ops.add_rms_norm(x, x, weight, 1e-5)
    ops.silu_mul(x)
    ops.gelu_tanh_mul(x)


def choices(vocab: int, dtype: torch.dtype) -> None:
    from pegboard_platform_cuda import ops

    wide, whole = torch.ones(3, dtype=torch.float64), torch.ones(3, dtype=torch.int64)
    logits = torch.empty(3, vocab, dtype=dtype)
    ops.choose(logits, wide, whole, wide, wide, whole, whole, whole)


def products(inputs: int, outputs: int) -> None:
    from pegboard_platform_cuda.kernels.linear import product
    from pegboard_platform_cuda.tiles import Tile, tile_for

    weight = torch.empty(outputs, inputs, dtype=BF16)
    for rows in (1, 2, 16, 32, 64, 128, 256):
        product(torch.empty(rows, inputs, dtype=BF16), weight, tile_for(inputs, outputs, rows))
    x = torch.empty(8, inputs, dtype=BF16)
    product(x, weight, Tile("matrix", outputs=64, depth=128, splits=4, stages=4))
    product(x, weight, Tile("matrix", outputs=64, depth=128, stages=4, swapped=True))


def mixture(tokens: int, experts: int = 128, hidden: int = 2048, size: int = 768) -> None:
    from pegboard_platform_cuda import ops

    x = torch.empty(tokens, hidden, dtype=BF16)
    weights, ids = ops.moe_route(torch.empty(tokens, experts, dtype=BF16), 8, True)
    ops.moe_gate(x, torch.empty(experts, hidden, dtype=BF16), 8, True)
    # memory that is never touched
    gate_up = torch.empty(experts, 2 * size, hidden, dtype=BF16)
    down = torch.empty(experts, hidden, size, dtype=BF16)
    ops.moe_experts(x, gate_up, down, weights, ids, "silu")


def described(tile: tuple[Any, ...]) -> None:
    from pegboard_platform_cuda import tiles
    from pegboard_platform_cuda.kernels import experts

    before = experts.expert_tile
    experts.expert_tile = lambda pairs, count: tiles.ExpertTile(*tile, described=True)
    try:
        mixture(16384)
    finally:
        experts.expert_tile = before


def overlapping(work: Callable[[], None]) -> None:
    from pegboard_platform_cuda import tiles
    from pegboard_platform_cuda.kernels import overlap

    before = tiles.OVERLAP_ROWS, overlap._capable
    tiles.OVERLAP_ROWS, overlap._capable = 1 << 30, lambda: True
    try:
        work()
    finally:
        tiles.OVERLAP_ROWS, overlap._capable = before


CASES: dict[str, Callable[[], None]] = {
    "rows 128": lambda: rows(128),
    "rows 1024": lambda: rows(1024),
    "rows 4096": lambda: rows(4096),
    "rows 28672": lambda: rows(28672),
    "rows 4096 float32": lambda: rows(4096, torch.float32),
    "choose of 151936": lambda: choices(151936, BF16),
    "choose of 128256 float32": lambda: choices(128256, torch.float32),
    "product 4096 x 6144": lambda: products(4096, 6144),
    "product 4096 x 128256": lambda: products(4096, 128256),
    "product 768 x 100": lambda: products(768, 100),
    "mixture of 1": lambda: mixture(1),
    "mixture of 64": lambda: mixture(64),
    "mixture of 256": lambda: mixture(256),
    "mixture of 512": lambda: mixture(512),
    "mixture of 1024": lambda: mixture(1024),
    "mixture of 16384": lambda: mixture(16384),
    "described mixture": lambda: described((128, 128, 256, 64, 8, 3)),
    "overlapping product 4096 x 6144": lambda: overlapping(lambda: products(4096, 6144)),
    "overlapping rows 4096": lambda: overlapping(lambda: rows(4096)),
    "overlapping heads": lambda: overlapping(lambda: heads(32, 8, 128, 128, norm=True)),
    "heads of 128": lambda: heads(48, 8, 128, 128, norm=False),
    "normed heads of 128": lambda: heads(32, 8, 128, 128, norm=True),
    "heads of 128, stored as fp8": lambda: heads(48, 8, 128, 128, norm=False, stored=FP8),
    "normed heads of 128, stored as fp8": lambda: heads(32, 8, 128, 128, norm=True, stored=FP8),
    "heads of 64": lambda: heads(15, 3, 64, 64, norm=False),
    "normed heads of 256": lambda: heads(6, 1, 256, 256, norm=True),
    "normed heads of 96 of which 24 turn": lambda: heads(6, 1, 96, 24, norm=True),
}


def main() -> int:
    """Compile the cases whose names hold one of the arguments, all without arguments."""
    wanted = sys.argv[1:]
    case = ""
    faults = 0

    def report(kernel: Any) -> None:
        registers, stack, _ = usage(kernel.asm["cubin"])
        shared, name = kernel.metadata.shared, kernel.metadata.name
        print(f"{case:38} {name:24} {registers:4} {stack:5} {shared:7}", flush=True)

    capture(report)
    for case, work in CASES.items():
        if wanted and not any(word in case for word in wanted):
            continue
        try:
            work()
        except Exception as error:
            faults += 1
            print(f"{case:38} FAILED: {error!s:.1500}", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
