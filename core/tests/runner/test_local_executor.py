from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pegboard.api.attention import AttentionBackend, AttentionContext
from pegboard.api.kv import KVLayout
from pegboard.api.ops import OpVersion
from pegboard.api.params import SamplingParams
from pegboard.api.step import LateInputs, NewRow, StepPlan
from pegboard.config.engine import EngineConfig
from pegboard.config.model import resolve_model
from pegboard.errors import MissingPluginError, ResourceError, SelectionError
from pegboard.kv import size_cache
from pegboard.plugins import build_board
from pegboard.runner.local import LocalExecutor
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.families import TINY_FAMILY
from pegboard.testing.null_platform import NULL_PLATFORM

BLOCK = 8


class PlainKernel:
    """Attention row by row, straight from the definition."""

    def __init__(self, ctx: AttentionContext) -> None:
        self.ctx = ctx

    def layouts(self, spec):
        return (KVLayout("token-major", ("kv", "block", "token", "head", "dim")),)

    def plan(self, step):
        return step

    def forward(self, layer, inputs, kv, step):
        kv.data[0].flatten(0, 1)[step.slots] = inputs.key
        kv.data[1].flatten(0, 1)[step.slots] = inputs.value
        out = torch.empty_like(inputs.query)
        for row, blocks in enumerate(step.block_lists):
            length, count = step.kv_lens[row], step.query_lens[row]
            begin = int(step.query_starts[row])
            used = torch.tensor(blocks[: -(-length // BLOCK)])
            keys, values = (kv.data[i, used].flatten(0, 1)[:length] for i in (0, 1))
            share = layer.heads // layer.kv_heads
            keys, values = (x.repeat_interleave(share, 1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", inputs.query[begin : begin + count], keys)
            hidden = torch.ones(count, length).tril(length - count) == 0
            scores = (scores * layer.scale).masked_fill(hidden, -torch.inf).softmax(-1)
            out[begin : begin + count] = torch.einsum("hqk,khd->qhd", scores, values)
        return out


def backend(name: str = "plain", **conditions) -> AttentionBackend:
    return AttentionBackend(name, f"{__name__}:PlainKernel", **conditions)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def make_executor(path: Path, extra=None, **options) -> LocalExecutor:
    extra = (NULL_PLATFORM, backend()) if extra is None else extra
    surfaces = {
        AttentionBackend: "attention",
        OpVersion: "ops",
        type(NULL_PLATFORM): "platform",
    }
    board = build_board(
        environ={"VLLM_PLUGINS": ""},
        extra=[("model", TINY_FAMILY), *((surfaces[type(item)], item) for item in extra)],
    )
    config = EngineConfig(
        model=str(path),
        block_size=BLOCK,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=64,
        **options,
    )
    return LocalExecutor(board, config, resolve_model(board, config))


@pytest.fixture
def executor(tiny):
    executor = make_executor(tiny)
    executor.load()
    profile = executor.profile()
    config = executor._config
    cache = size_cache(executor._device().groups, config, profile.cache_bytes(0.9), 64)
    executor.allocate(cache)
    executor.warm_up()
    yield executor
    executor.close()


def run(executor: LocalExecutor, prompt: list[int], chunks: list[int], slot: int):
    """Greedy tokens and log-probabilities of one request whose first chunks are given."""
    params = SamplingParams(temperature=0.0, logprobs=0, prompt_logprobs=0)
    blocks = [[slot * 8 + i for i in range(1, 9)]]
    new = [NewRow(slot, prompt, [], params, 0, 0, [], blocks)]
    start, known, tokens, scores = 0, len(prompt), [], []
    for step, count in enumerate(chunks):
        done = start + count == known
        plan = StepPlan(step, [slot], [start], [count], [done], [[[]]], new_rows=new)
        pending = executor.execute(plan)
        pending.sample(LateInputs(step_id=step))
        result = pending.result()
        if slot in result.prompt_logprobs:
            scores += [entry.logprobs[0] for entry in result.prompt_logprobs[slot].entries]
        for ids in result.token_ids:
            tokens += ids
        for entries in result.logprobs.values():
            scores += [entry.logprobs[0] for entry in entries]
        start, known, new = start + count, known + done, []
    return tokens, scores


def test_a_real_model_gives_the_same_whatever_the_chunks(executor):
    prompt = [5, 80, 33, 7, 120, 121, 9, 250, 61, 4, 17]
    whole = run(executor, prompt, [11] + [1] * 8, slot=0)
    chunked = run(executor, prompt, [3, 1, 7] + [1] * 8, slot=3)
    assert len(whole[0]) == 9
    assert len(whole[1]) == 10 + 9
    assert whole[0] == chunked[0]
    assert whole[1] == pytest.approx(chunked[1], abs=1e-4)


def test_the_profile_is_plausible(tiny):
    executor = make_executor(tiny)
    executor.load()
    profile = executor.profile()
    stored = (tiny / "model.safetensors").stat().st_size
    assert abs(profile.weights - stored) < 0.1 * stored + 200_000  # rope tables and the header
    vocab, rows = 259, 4
    assert vocab * rows * 4 < profile.peak_activations < 10 << 20
    assert profile.cache_limit == NULL_PLATFORM.runtime.load().TOTAL_BYTES // 16


def test_a_small_model_is_built_by_one_thread_and_runs_with_all(tiny, monkeypatch):
    """Not so a large one, and a failure leaves the number of threads as it was."""
    from pegboard.runner import local, threads

    seen, load = [], local.load_model

    def watched(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return load(*args, **kwargs)

    monkeypatch.setattr(local, "load_model", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        make_executor(tiny).load()
        monkeypatch.setattr(threads, "SMALL_BYTES", 1)
        make_executor(tiny).load()
        monkeypatch.undo()
        with pytest.raises(RuntimeError), threads.few_threads(0):
            raise RuntimeError
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1, 3]


def test_facts_name_what_was_chosen(executor):
    facts = executor.facts()
    assert facts["platform"] == "null"
    assert facts["attention"] == ["plain"]
    assert facts["dtype"] == "float32"
    assert facts["kv_layouts"] == ["token-major"]
    assert set(facts["ops"].values()) == {"plain"}
    assert facts["op_versions"] == "auto"


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", "mine"), ("plain", "plain")])
def test_plain_op_versions_leave_out_what_plugins_offer(tiny, wanted, chosen):
    mine = OpVersion("mine", "rms_norm", "pegboard.nn.ops:rms_norm")
    executor = make_executor(tiny, (NULL_PLATFORM, backend(), mine), op_versions=wanted)
    executor.load()
    facts = executor.facts()
    executor.close()
    assert facts["op_versions"] == wanted
    assert facts["ops"]["rms_norm"] == chosen


def test_without_any_platform_the_error_says_what_is_missing(tiny):
    with pytest.raises(MissingPluginError, match="platform"):
        make_executor(tiny, extra=(backend(),)).load()


def test_a_platform_or_backend_asked_for_by_a_wrong_name_is_named(tiny):
    with pytest.raises(MissingPluginError, match=r"'tpu'.*platform='tpu'"):
        make_executor(tiny, platform="tpu").load()
    with pytest.raises(MissingPluginError, match=r"'flash'.*attention_backend='flash'"):
        make_executor(tiny, attention_backend="flash").load()


def test_a_backend_that_does_not_serve_the_model_is_refused_before_weights_are_read(tiny):
    narrow = backend(head_sizes=(64,))
    with pytest.raises(SelectionError, match="head size 8 is not among 64"):
        make_executor(tiny, extra=(NULL_PLATFORM, narrow)).load()


def test_a_model_that_cannot_fit_is_refused_before_weights_are_read(tiny):
    executor = make_executor(tiny, kv_cache_memory_bytes=1 << 40)
    with pytest.raises(ResourceError):
        executor.load()
    assert executor._model is None
