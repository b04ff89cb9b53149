"""How much memory the demo model takes while it is loaded, by the operating system's count."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pegboard.testing.checkpoints import write_tiny_model

WEIGHTS = 1.3
"""Times the size of the file: weights, tokeniser and whatever is in use for a moment only. The
cache is kept too small to play a part."""

ATTEMPTS = 3
"""A copy would be there each time. The count also has pages of libraries that the machine happens
to map in larger runs, some percent of the file, and these are not there each time."""

MEASURE = """
import gc, json, sys
from pegboard import LLM, SamplingParams

def mark(name):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith(name + ":"))

def opened(model, dtype):
    small = {"max_model_len": 64, "max_num_seqs": 4, "num_gpu_blocks_override": 6}
    return LLM(model, dtype=dtype, **small)

def answer(llm):
    llm.generate([5, 6, 7], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)

model, tiny, dtype = sys.argv[1:]
with opened(tiny, dtype) as llm:  # brings in every library and the pages of its code
    answer(llm)
gc.collect()
before = mark("VmRSS")
with open("/proc/self/clear_refs", "w") as peak:
    peak.write("5")  # the peak starts again from here
assert mark("VmHWM") < before + (4 << 20)

with opened(model, dtype) as llm:
    peak, held = mark("VmHWM") - before, mark("VmRSS") - before
    answer(llm)
print(json.dumps({"peak": peak, "held": held, "kv": llm.cache.bytes()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.accept)])
def test_loading_makes_no_second_copy_of_the_weights(
    smollm2_path: Path, tmp_path: Path, dtype: str
) -> None:
    tiny = write_tiny_model(tmp_path / "tiny")
    size = smollm2_path.stat().st_size
    for _ in range(ATTEMPTS):
        found = measured(smollm2_path, tiny, dtype)
        limit = WEIGHTS * size + found["kv"]
        shares = {name: f"{value / size:.2f} x file" for name, value in found.items()}
        print(dtype, shares)
        if max(found["held"], found["peak"]) <= limit:
            break
    assert found["held"] >= size / 2, "the weights must be somewhere"
    assert found["held"] <= limit, shares
    assert found["peak"] <= limit, shares


def measured(model: Path, tiny: Path, dtype: str) -> dict[str, int]:
    """Bytes of a process that loads the model, beside what it had after the tiny one."""
    command = [sys.executable, "-Ic", MEASURE, str(model), str(tiny), dtype]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    found: dict[str, int] = json.loads(outcome.stdout)
    return found
