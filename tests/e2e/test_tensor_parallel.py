"""Two ranks on the host's processors give what one rank gives, and no process outlives its engine.

Every engine with ranks is two processes that import torch, so the tests share few of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import psutil
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pegboard import LLM, RequestOutput, SamplingParams, __version__
from pegboard.errors import ConfigError, EngineDeadError, PluginError, UnsupportedError
from pegboard.plugins import Board, load_plugins
from pegboard.plugins.lock import Lock
from pegboard.testing.checkpoints import write_hybrid_model, write_tiny_model
from pegboard_quant_fp8.codes import CODES, round_blocks
from pegboard_testkit.alone import compare_with_alone
from pegboard_testkit.near_tie import assert_same

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 128
VOCAB = 97
"""Odd, so that one rank has a row more."""
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.25,
    "tie_word_embeddings": False,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=0)
DRAWN = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=24, ignore_eos=True)
BLOCK = [8, 16]
"""Outputs and inputs that share a scale, so small that shares hold whole blocks."""


def save(architecture: str, folder: Path, **settings: Any) -> Path:
    """A random checkpoint as transformers writes it."""
    config = getattr(transformers, f"{architecture}Config")(**{**BASE, **settings})
    torch.manual_seed(3)
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
    model.save_pretrained(folder)
    return folder


def rounded(folder: Path) -> Path:
    """The checkpoint with codes and block scales in place of its projections."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        weight = tensors[name]
        codes = torch.empty(weight.shape, dtype=CODES)
        scale = torch.empty(weight.shape[0] // BLOCK[0], weight.shape[1] // BLOCK[1])
        round_blocks(weight, codes, scale, (BLOCK[0], BLOCK[1]))
        tensors |= {name: codes, f"{name}_scale_inv": scale}
    save_file(tensors, file)
    return folder


def llama(folder: Path) -> Path:
    """One key head for both ranks; biases everywhere."""
    keys = {"num_key_value_heads": 1, "head_dim": 16}
    return save("Llama", folder, attention_bias=True, mlp_bias=True, **keys)


def qwen3(folder: Path) -> Path:
    """Norms of heads, a tied head, projections in 8 bits."""
    keys = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": BLOCK}
    settings = {"head_dim": 16, "tie_word_embeddings": True, "quantization_config": keys}
    return rounded(save("Qwen3", folder, **settings))


def mixture(folder: Path) -> Path:
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return save("Qwen3Moe", folder, head_dim=16, norm_topk_prob=True, **experts)


def open_engine(path: Path, **options: Any) -> LLM:
    common = {
        "dtype": "float32",
        "block_size": 8,
        "max_num_seqs": 8,
        "num_gpu_blocks_override": 64,
        "skip_tokenizer_init": True,
        "platform": "cpu",
    }
    return LLM(str(path), **{**common, **options})


def prompts(count: int) -> list[list[int]]:
    """Random ones, and one that begins as the first does."""
    draws = np.random.default_rng(1)
    found = [draws.integers(3, VOCAB, size=n).tolist() for n in (30, 1, 9, 61, 44)[:count]]
    return [*found, found[0] + found[1]]


def same_as_one_rank(path: Path, outputs: list[RequestOutput]) -> None:
    with open_engine(path, max_num_batched_tokens=CONTEXT, enable_prefix_caching=False) as alone:
        assert_same(compare_with_alone(alone, outputs))


def alive(processes: list[int]) -> list[int]:
    """Those that exist, zombies not counted."""
    found = []
    for process in filter(psutil.pid_exists, processes):
        try:
            if psutil.Process(process).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def interrupt(llm: LLM) -> None:
    """Raise in the middle of a run, at several moments; the engine goes on."""

    def raise_(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, raise_)
    try:
        for moment in (0.004, 0.017, 0.031):
            signal.setitimer(signal.ITIMER_REAL, moment)
            with pytest.raises(TimeoutError):
                llm.generate([prompts(2)[0]] * 50, GREEDY, use_tqdm=False)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def gone_within(seconds: float, processes: list[int]) -> bool:
    end = time.monotonic() + seconds
    while alive(processes) and time.monotonic() < end:
        time.sleep(0.05)
    return not alive(processes)


@pytest.mark.accept
def test_two_ranks_with_quantised_weights_give_the_tokens_of_one(tmp_path: Path) -> None:
    path = qwen3(tmp_path)
    with open_engine(path, tensor_parallel_size=2) as llm:
        processes = llm.engine.core.executor.facts()["rank_processes"]
        outputs = llm.generate(prompts(3), GREEDY, use_tqdm=False)
    assert len(processes) == 2 and not alive(processes)
    same_as_one_rank(path, outputs)


def test_caching_preemption_and_draws_are_the_same_on_two_ranks(tmp_path: Path) -> None:
    path = llama(tmp_path)
    scarce = {"num_gpu_blocks_override": CONTEXT // 8 + 4, "max_num_batched_tokens": 24}
    with open_engine(path, tensor_parallel_size=2, **scarce) as llm:
        outputs = llm.generate(prompts(5), GREEDY, use_tqdm=False)
        outputs += llm.generate(prompts(2), GREEDY, use_tqdm=False)
        interrupt(llm)
        drawn = llm.generate(prompts(5), DRAWN, use_tqdm=False)
        stats = llm.engine.stats()
        assert llm.engine.core.overlapped > 0, "no step was planned while another ran"
    assert stats.preemptions > 0 and stats.cache.hit_tokens > 0
    same_as_one_rank(path, outputs)
    with open_engine(path) as one:
        expected = one.generate(prompts(5), DRAWN, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in drawn] == [o.outputs[0].token_ids for o in expected]


@pytest.mark.accept
def test_two_ranks_sleep_and_wake_up(tmp_path: Path) -> None:
    path = llama(tmp_path)
    with open_engine(path, tensor_parallel_size=2) as llm:
        ranks = [psutil.Process(p) for p in llm.engine.core.executor.facts()["rank_processes"]]
        for level in (1, 2):
            llm.sleep(level)
            assert llm.is_sleeping() and all(process.is_running() for process in ranks)
            llm.wake_up(["weights"])
            llm.wake_up(["kv_cache"])
            outputs = llm.generate(prompts(2), GREEDY, use_tqdm=False)
    same_as_one_rank(path, outputs)


@pytest.mark.accept
def test_a_killed_rank_ends_a_mixture_of_experts_that_was_right_before(tmp_path: Path) -> None:
    path = mixture(tmp_path)
    with open_engine(path, tensor_parallel_size=2) as llm:
        outputs = llm.generate(prompts(3), GREEDY, use_tqdm=False)
        processes = llm.engine.core.executor.facts()["rank_processes"]
        long = SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True)
        killed: list[float] = []

        def kill() -> None:
            time.sleep(0.05)
            killed.append(time.monotonic())
            os.kill(processes[1], 9)

        threading.Thread(target=kill).start()
        with pytest.raises(EngineDeadError, match=r"rank 1 .* was ended by signal SIGKILL"):
            llm.generate([prompts(2)[0]] * 400, long, use_tqdm=False)
        assert time.monotonic() - killed[0] < 5
        assert gone_within(5, processes)
        with pytest.raises(EngineDeadError, match="rank 1"):
            llm.generate([[1]], GREEDY, use_tqdm=False)
    same_as_one_rank(path, outputs)


def test_ranks_end_with_an_engine_that_is_killed(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "tiny")
    script = (
        "import sys\nfrom pegboard import LLM\n"
        "llm = LLM(sys.argv[1], platform='cpu', tensor_parallel_size=2, max_model_len=64)\n"
        "assert 'torch' not in sys.modules\n"
        "print(*llm.engine.core.executor.facts()['rank_processes'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    folder = tmp_path / "temporary"
    folder.mkdir()
    command = [sys.executable, "-Ic", script, str(path)]
    more: dict[str, Any] = {"text": True, "env": {**os.environ, "TMPDIR": str(folder)}}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, **more) as engine:
        assert engine.stdout is not None
        processes = [int(word) for word in engine.stdout.readline().split()]
        assert len(alive(processes)) == 2
        engine.kill()
    assert gone_within(5, processes)
    assert not list(folder.iterdir()), "the ranks' meeting place is still there"


def test_an_error_of_a_rank_while_it_loads_is_that_of_the_engine(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path)
    before = psutil.Process().children()
    with pytest.raises(UnsupportedError, match="the null platform serves one rank, not 2"):
        LLM(str(path), platform="null", tensor_parallel_size=2, max_model_len=64)
    assert psutil.Process().children() == before


@pytest.mark.accept
def test_ranks_compare_installed_plugins_with_the_lock_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a file had changed after the engine's own process had looked."""
    monkeypatch.setattr(Board, "check_lock", lambda board, path: None)
    lock = str(tmp_path / "a.lock")
    Lock("0.0.7", (), {}).write(lock)
    before = psutil.Process().children()
    with pytest.raises(PluginError, match=r"pegboard-core 0\.0\.7 is locked"):
        LLM(
            write_tiny_model(tmp_path / "tiny"),
            board=load_plugins(),
            tensor_parallel_size=2,
            max_model_len=64,
            plugins_lock=lock,
        )
    assert psutil.Process().children() == before


def test_ranks_load_the_plugins_of_the_engines_process_or_none(tmp_path: Path) -> None:
    """Here the engine's process claims to have loaded another version of one of them."""
    path = write_tiny_model(tmp_path)
    before = psutil.Process().children()
    board = load_plugins(role=("front", "engine"))
    old = [
        planned._replace(version="0.0.1") if planned.id == "cpu" else planned
        for planned in board.plan.plugins
    ]
    board = attrs.evolve(board, plan=attrs.evolve(board.plan, plugins=tuple(old)))
    with pytest.raises(PluginError, match=r"pegboard-platform-cpu 0\.0\.1 has the version"):
        LLM(str(path), board=board, platform="cpu", tensor_parallel_size=2, max_model_len=64)
    assert psutil.Process().children() == before


WORKERS_ONLY = """
import os
import attrs
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0}
PEGBOARD_OVERRIDE = {"platform": ["cpu"]}
PEGBOARD_PROCESSES = ("worker",)


@attrs.frozen
class Settings:
    folder: str


@hookimpl
def pegboard_settings():
    return Settings


@hookimpl
def pegboard_platforms():
    probe = "pegboard_platform_cpu.runtime:probe"
    return [Platform("cpu", probe, "workers_only:runtime", takes_settings=True)]


def runtime(index, settings):
    from pegboard_platform_cpu.runtime import CpuRuntime

    open(os.path.join(settings.folder, f"rank-{index}-of-{os.getppid()}"), "x").close()
    return CpuRuntime(index)
"""


@pytest.mark.accept
def test_ranks_load_what_is_for_workers_with_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's process never imports it."""
    site, seen = tmp_path / "site", tmp_path / "seen"
    for folder in (site / "workers_only-1.0.dist-info", seen):
        folder.mkdir(parents=True)
    about = f"Name: workers-only\nVersion: 1.0\nRequires-Dist: pegboard-core=={__version__}\n"
    (site / "workers_only-1.0.dist-info/METADATA").write_text(about)
    entry = "[pegboard.platforms]\nworkers = workers_only\n"
    (site / "workers_only-1.0.dist-info/entry_points.txt").write_text(entry)
    (site / "workers_only.py").write_text(WORKERS_ONLY)
    monkeypatch.syspath_prepend(str(site))
    path = write_tiny_model(tmp_path / "model")
    own = {"workers": {"folder": str(seen)}}
    with LLM(
        str(path),
        platform="cpu",
        tensor_parallel_size=2,
        max_model_len=64,
        plugin_config=own,
    ) as llm:
        state = {record.id: record.state for record in llm.board.plugins}["workers"]
    assert state == "unused" and "workers_only" not in sys.modules
    assert {file.name for file in seen.iterdir()} == {
        f"rank-{rank}-of-{os.getpid()}" for rank in (0, 1)
    }


def test_what_cannot_be_shared_out_is_refused_before_a_rank_is_started(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny")
    with pytest.raises(ConfigError, match="tensor_parallel_size=3 is not allowed: 2 key and value"):
        open_engine(tiny, tensor_parallel_size=3)
    hybrid = write_hybrid_model(tmp_path / "hybrid")
    with pytest.raises(UnsupportedError, match="'tiny-hybrid': it runs on one rank"):
        open_engine(hybrid, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="tensor_parallel_size=0 is not allowed"):
        open_engine(tiny, tensor_parallel_size=0)
    with pytest.raises(ConfigError, match="tensor_parallel_size=2 is not allowed: 1 beside kv_tr"):
        open_engine(tiny, tensor_parallel_size=2, kv_transfer_config={"kv_connector": "x"})


@pytest.mark.gpu
def test_two_gpus_give_the_tokens_of_one(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    for write in (llama, qwen3, mixture):
        path = write(tmp_path / write.__name__)
        options = {"platform": "cuda", "max_num_batched_tokens": 64}
        for eager in (True, False):
            with open_engine(path, tensor_parallel_size=2, enforce_eager=eager, **options) as llm:
                outputs = llm.generate(prompts(5), GREEDY, use_tqdm=False)
                facts = llm.engine.core.executor.facts()
            assert (facts["replays"] > 0) != eager
            same_as_one_rank(path, outputs)
