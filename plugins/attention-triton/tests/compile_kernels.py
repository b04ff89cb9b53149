"""Compile every variant of the kernels for an H200, without one; print what each takes as JSON.

Run as a script: in the process of the tests kernels are interpreted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pegboard_attention_triton.kernel import JOINED_AT_ONCE
from pegboard_attention_triton.kernels.cut import cut_rows
from pegboard_attention_triton.kernels.decode import PAIRED_GROUP, decode
from pegboard_attention_triton.kernels.fresh import fresh
from pegboard_attention_triton.kernels.prefill import prefill
from pegboard_attention_triton.launch import (
    PrefillLaunch,
    decode_launch,
    fresh_launch,
    prefill_launch,
)

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {"bf16": tl.bfloat16, "fp16": tl.float16, "fp32": tl.float32}
TABLES = ("table", "pieces", "tiles", "arrivals", "kv_lens", "query_starts", "prefix")
FULL: Mapping[str, Any] = {"KIND": "full", "SPAN": 1}
SLIDING = {"KIND": "sliding", "SPAN": 4096}
CHUNKED = {"KIND": "chunked", "SPAN": 8192}


def build(kernel: Any, dtype: str, constants: Mapping[str, Any], warps: int, stages: int) -> Any:
    """Compile one variant; storage has strides and addresses that are multiples of 16."""

    def kind(name: str) -> str:
        if name in constants:
            return "constexpr"
        if name in ("keys", "values"):
            return f"tensordesc<{dtype}[{constants['TILE']}, {constants['DIM']}]>"
        if name in TABLES:
            return "*i32"
        if name in ("states", "marks"):
            return "*fp32"
        if name in ("k_scale", "v_scale"):
            return "*fp32"
        if name == "kv" and constants["SCALED"]:
            return "*fp8e4nv"
        if name in ("query", "out", "kv", "key", "value", "sinks"):
            return f"*{dtype}"
        return "fp32" if name in ("scale", "cap") else "i32"

    signature = {name: kind(name) for name in kernel.arg_names}
    free = ("table", "pieces", "prefix", "tiles", "table_row", "rows", "room", "scale", "cap")
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(kernel.arg_names)
        if name not in free and not signature[name].startswith(("constexpr", "tensordesc"))
    }
    source = ASTSource(kernel, signature, dict(constants), aligned)
    return triton.compile(source, TARGET, {"num_warps": warps, "num_stages": stages})


def sizes(
    dtype: str,
    dim: int,
    group: int,
    cap: bool = False,
    block: int = 16,
    sinks: bool = False,
    coded: bool = False,
) -> dict[str, Any]:
    return {
        "HEADS": 8 * group,
        "GROUP": group,
        "DIM": dim,
        "BLOCK": block,
        "DOT": tl.float16 if coded and dtype != "fp32" else TYPES[dtype],
        "SOFT_CAP": cap,
        "SINKS": sinks,
        "SCALED": coded,
    }


def _item_bytes(dtype: str, coded: bool = False, **_: Any) -> int:
    return 4 if dtype == "fp32" else 1 if coded else 2


def decode_variant(dtype: str, dim: int, group: int, bands: bool = False, **more: Any) -> Any:
    launch = decode_launch(dim, _item_bytes(dtype, **more))
    lanes = triton.next_power_of_2(group) * triton.next_power_of_2(dim)
    constants = {**sizes(dtype, dim, group, **more), "TILE": launch.tile}
    constants["JOIN"] = max(JOINED_AT_ONCE // lanes, 1)
    constants["LANES"] = launch.lanes if bands else 0
    if constants["SCALED"] and group > PAIRED_GROUP.value:
        constants["DOT"] = TYPES[dtype]
    return build(decode, dtype, constants, launch.warps, launch.stages)


def prefill_variant(
    dtype: str,
    dim: int,
    group: int,
    kind: Mapping[str, Any] = FULL,
    launch: PrefillLaunch | None = None,
    **more: Any,
) -> Any:
    launch = launch or prefill_launch(dim, _item_bytes(dtype, **more))
    pairs = max(launch.pairs, triton.next_power_of_2(group))
    constants = {**sizes(dtype, dim, group, **more), **kind, "TILE": launch.tile, "TILE_M": pairs}
    return build(prefill, dtype, constants, launch.warps, launch.stages)


def fresh_variant(dtype: str, dim: int, group: int, launch: PrefillLaunch, **more: Any) -> Any:
    constants = {**sizes(dtype, dim, group, **more), "TILE": launch.tile}
    constants["TILE_M"] = max(launch.pairs, triton.next_power_of_2(group))
    for name in ("BLOCK", "DOT", "SCALED"):
        del constants[name]
    return build(fresh, dtype, constants, launch.warps, launch.stages)


def variants() -> Iterator[tuple[str, Any]]:
    """Name and compiled kernel."""
    for kind in (FULL, SLIDING, CHUNKED):
        for bands in (0, 8) if kind is FULL else (0,):
            cut = {**kind, "BLOCK": 16, "TILE": 64, "PARTS": 66, "ROWS": 256, "BAND_ROWS": bands}
            cut |= {"LEAST_TOKENS": 1024, "LEAST_ROWS": 4}
            yield f"cut_rows {kind['KIND']} {bands}", build(cut_rows, "i32", cut, 4, 3)
    for dim, group in ((64, 8), (80, 1), (128, 1), (128, 4), (128, 16), (192, 4), (256, 8)):
        yield f"decode bf16 {dim} {group}", decode_variant("bf16", dim, group)
    for dim, group in ((64, 8), (80, 1), (128, 4), (128, 8), (256, 8)):
        name = f"decode bf16 {dim} {group} bands"
        yield name, decode_variant("bf16", dim, group, bands=True)
    for dim in (64, 80, 128, 192, 256):
        yield f"prefill bf16 {dim}", prefill_variant("bf16", dim, 4)
    for dim, group in ((64, 8), (128, 4), (128, 7), (256, 8)):
        launch = fresh_launch(dim)
        assert launch is not None
        yield f"fresh bf16 {dim} {group}", fresh_variant("bf16", dim, group, launch)
    yield "decode fp16 128 7 capped", decode_variant("fp16", 128, 7, cap=True)
    for dim in (64, 128, 256):
        yield f"decode fp32 {dim}", decode_variant("fp32", dim, 4)
        yield f"prefill fp32 {dim}", prefill_variant("fp32", dim, 4)
    yield "prefill bf16 256 sliding capped", prefill_variant("bf16", 256, 4, SLIDING, cap=True)
    yield "prefill bf16 128 chunked", prefill_variant("bf16", 128, 5, CHUNKED, block=64)
    yield "prefill fp16 128 sliding", prefill_variant("fp16", 128, 7, SLIDING)
    for dim, group in ((64, 8), (80, 1), (128, 1), (128, 4), (256, 8)):
        yield f"decode bf16 {dim} {group} coded", decode_variant("bf16", dim, group, coded=True)
    for dim, group in ((64, 33), (64, 71), (256, 64)):
        yield f"decode bf16 {dim} {group} coded", decode_variant("bf16", dim, group, coded=True)
    for dim, group in ((64, 1), (64, 7), (64, 8), (64, 16), (80, 1), (128, 4), (128, 8), (256, 8)):
        name = f"decode bf16 {dim} {group} bands coded"
        yield name, decode_variant("bf16", dim, group, bands=True, coded=True)
    for dim in (64, 128, 256):
        yield f"prefill bf16 {dim} coded", prefill_variant("bf16", dim, 4, coded=True)
    yield "prefill bf16 64 71 coded", prefill_variant("bf16", 64, 71, coded=True)
    yield "decode fp16 64 71 coded", decode_variant("fp16", 64, 71, coded=True)
    yield "decode fp16 128 4 coded", decode_variant("fp16", 128, 4, coded=True)
    yield "decode bf16 64 8 sinks", decode_variant("bf16", 64, 8, sinks=True)
    yield "prefill bf16 64 sinks", prefill_variant("bf16", 64, 8, SLIDING, sinks=True)


def dumped(cubin: bytes, what: str) -> str:
    """What the disassembler says of a compiled kernel, of `what` it is asked for."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(CUOBJDUMP), what, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def never_written(code: str) -> list[str]:
    """Instructions that read a uniform register which none before them writes.

    An assembler has left out such a write: the address of an operand in shared memory then was what
    the register happened to hold, and the results were wrong, not always the same.
    """
    written: set[int] = set()
    found = []
    for line in re.findall(r"/\*[0-9a-f]{4,5}\*/\s+([^;]*);", code):
        name, _, rest = re.sub(r"^@\S+\s+", "", line.strip()).partition(" ")
        operands = [operand.strip() for operand in rest.split(",")]
        target = re.fullmatch(r"UR(\d+)", operands[0])
        sources = operands[1:] if target else operands
        if any(set(read_by(name, operand, sources)) - written for operand in sources):
            found.append(line.strip())
        if target:
            wide = 4 if ".128" in name else 2 if ".64" in name or "WIDE" in name else 1
            written |= set(range(int(target[1]), int(target[1]) + wide))
    return found


def read_by(name: str, operand: str, sources: list[str]) -> Iterator[int]:
    """The uniform registers that an operand of an instruction reads."""
    for kind, number in re.findall(r"(gdesc\[|desc\[|\[[^,\]]*|)UR(\d+)", operand):
        wide = kind.endswith("desc[") or (".64" in name and not kind)
        first, many = int(number), 2 if wide else 1
        if kind == "gdesc[":  # two descriptors; where the left matrix is in registers, the second
            left = re.match(r"R\d", sources[1]) is not None
            first, many = (first + 2, 2) if left else (first, 4)
        yield from range(first, first + many)


def resources(compiled: Any) -> dict[str, Any]:
    """Registers and bytes of stack per thread, bytes of shared memory per program, instructions."""
    text = dumped(compiled.asm["cubin"], "--dump-resource-usage")
    words = dict(word.split(":", 1) for word in text.split() if word.count(":") == 1)
    ptx = compiled.asm["ptx"]
    return {
        "registers": int(words["REG"]),
        "stack": int(words["STACK"]),
        "shared": compiled.metadata.shared,
        "wgmma": ptx.count("wgmma.mma_async"),
        "wide_loads": ptx.count("cp.async.cg.shared.global"),
        "tile_loads": ptx.count("cp.async.bulk.tensor"),
        "never_written": never_written(dumped(compiled.asm["cubin"], "--dump-sass")),
    }


if __name__ == "__main__":
    json.dump({name: resources(compiled) for name, compiled in variants()}, sys.stdout, indent=1)
