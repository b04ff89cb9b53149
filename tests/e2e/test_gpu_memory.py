"""Memory of a GPU engine: enough at the highest load, and loading takes little of the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from pegboard import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.accept, pytest.mark.timeout(900)]

UTILISATION = 0.92
CONTEXT = 8192
SHARD = 400 << 20
"""Bytes of a file of the checkpoint that is loaded; it has six."""
ALLOWED = 1.5
"""Times a file, beside what libraries take."""
LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MEASURE = """
import gc, json, sys, threading, time
from pegboard import LLM, SamplingParams

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))

def load(folder):
    options = {"max_model_len": 128, "max_num_seqs": 4, "num_gpu_blocks_override": 64}
    with LLM(folder, platform="cuda", skip_tokenizer_init=True, **options) as llm:
        loaded = resident()
        llm.generate([[5, 6, 7]], SamplingParams(max_tokens=2, ignore_eos=True), use_tqdm=False)
    return loaded

def watch():
    while not ended.wait(0.002):
        seen.append(resident())

small, large = sys.argv[1:]
load(small)  # brings in every library
gc.collect()
before, seen, ended = resident(), [0], threading.Event()
thread = threading.Thread(target=watch)
thread.start()
loaded = load(large)
ended.set()
thread.join()
print(json.dumps({"peak": max(seen) - before, "held": loaded - before}))
"""


def prompts(count: int, length: int) -> list[list[int]]:
    draws = np.random.default_rng(1)
    return draws.integers(3, LARGE["vocab_size"], size=(count, length)).tolist()  # type: ignore[call-overload]


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "fp8", "quantization": "fp8"}])
def test_the_largest_batch_of_the_longest_prompts_fits(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **LARGE}))
    engine = {"load_format": "dummy", "skip_tokenizer_init": True, "platform": "cuda"}
    most = {"max_num_seqs": 256, "max_model_len": CONTEXT, "enable_prefix_caching": False}
    with LLM(str(tmp_path), gpu_memory_utilization=UTILISATION, **engine, **most, **options) as llm:
        room = llm.cache.bytes()
        params = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, logprobs=5)
        outputs = llm.generate(prompts(130, CONTEXT - 24), params, use_tqdm=False)
        assert {output.outputs[0].finish_reason for output in outputs} == {"length"}
        peak, (free, total) = torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()
    print(f"cache {room >> 20} MiB, peak {peak / total:.3f} of the device, free {free >> 20} MiB")
    assert room > total / 2
    assert (total - free) / total <= UTILISATION + 0.02


def checkpoint(folder: Path, layers: int) -> Path:
    shape = {**LARGE, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": layers}
    del shape["architectures"], shape["torch_dtype"]
    config = transformers.LlamaConfig(**shape, head_dim=64, tie_word_embeddings=False)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=SHARD)
    return folder


def test_loading_takes_about_a_file_of_the_host(tmp_path: Path) -> None:
    small, large = (checkpoint(tmp_path / str(layers), layers) for layers in (1, 12))
    files = [path.stat().st_size for path in large.glob("*.safetensors")]
    assert len(files) >= 5
    command = [sys.executable, "-Ic", MEASURE, str(small), str(large)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    found = json.loads(outcome.stdout)
    print({name: f"{value >> 20} MiB" for name, value in found.items()}, max(files) >> 20)
    assert found["peak"] <= ALLOWED * max(files), found
    assert found["held"] <= 0.5 * max(files), found
