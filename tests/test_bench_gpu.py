"""The GPU benchmark's script runs from end to end, and its parts tell right from wrong."""

from __future__ import annotations

import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

import pegboard_platform_cpu.ops
from pegboard import LLM
from pegboard.errors import MissingPluginError

FOLDER = Path(__file__).parent / "benchmarks"
SMALL = {"max_num_seqs": 8, "max_num_batched_tokens": 256, "num_gpu_blocks_override": 200}


def part(name: str) -> Any:
    """A module of the script, which is no package of the environment."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


bench_gpu = part("bench_gpu")
check = part("gpubench.check")
models = part("gpubench.models")
phases = part("gpubench.phases")
profiling = part("gpubench.profiling")
records = part("gpubench.records")
workloads = part("gpubench.workloads")


def record(**changes: Any) -> dict[str, Any]:
    variant = records.Variant("llama-3.1-8b")
    ceilings = {"read": 4.47, "copy": 4.28, "gemm": 747.0}
    shared = {"checked": True, "ceilings": ceilings, "date": "2026-11-30", "commit": "c" * 40}
    (made,) = records.make_records(variant, "closed-1", 1, [{"TPOT": 4.0}], shared)
    return {**made, **changes}


def test_the_script_measures_checks_profiles_and_goes_on_where_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--smoke", "--check", "--out", str(tmp_path), "--commit", "abc"]
    assert bench_gpu.main([*words, "--profile"]) == 0
    first = capsys.readouterr().out
    assert "positions compared, largest difference" in first and ": passed" in first
    assert "profile of decode" in first and "profile of prefill" in first
    assert "phases of mixed8" in first and "prompts" in first and "decode, 1 to 32" in first
    found = [item for path in tmp_path.iterdir() for item in json.loads(path.read_text())]
    cells = {(item["workload"], item["metric"]) for item in found}
    assert len(cells) == len(found) == 12
    # TPOT is a difference of two times, which may be anything where they are this short.
    assert all(item["figure"] > 0 for item in found if item["metric"] != "TPOT")
    assert all(item["checked"] is True for item in found)
    assert all(item["commit"] == "abc" and item["quantization"] == "" for item in found)

    assert bench_gpu.main(words) == 0
    assert "nothing to run" in capsys.readouterr().out
    assert bench_gpu.main([*words, "--markdown"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 12
    assert all(row.startswith("| tiny float32 | ") and row.endswith(" |") for row in rows)


def test_steps_are_counted_by_what_is_in_them() -> None:
    moments = [
        phases.Moment(*found)
        for found in ((0, 2, 40), (1, 32, 32), (3, 33, 33), (6, 32, 32), (10, 0, 0), (15, 0, 0))
    ]
    assert phases.phases_of(moments) == [
        phases.Phase("prompts", 1, 1.0, 40),
        phases.Phase("decode, 1 to 32", 2, 6.0, 64),
        phases.Phase("decode, 33 to 64", 1, 3.0, 33),
        phases.Phase("nothing", 1, 5.0, 0),
    ]
    assert phases.phases_of([]) == []


@pytest.mark.accept
def test_a_cell_that_fails_is_told_and_the_others_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Any, driver: Any) -> dict[str, float]:
        driver.llm.close()
        raise RuntimeError("out of order")

    monkeypatch.setattr(workloads.Prefill, "measure", broken)
    words = ["--smoke", "--out", str(tmp_path), "--workloads", "prefill-4x48,closed-1"]
    assert bench_gpu.main(words) == 1
    printed = capsys.readouterr().out
    assert "RuntimeError: out of order" in printed and "the engine is dead" in printed
    assert "FAILED: prefill-4x48" in printed
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"tiny-float32-start.json", "tiny-float32-closed-1.json"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--models", "gpt"], "no model 'gpt'"),
        (["--workloads", "closed-2"], "no workload 'closed-2'"),
    ],
)
def test_an_unknown_name_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bench_gpu.main(words)
    assert said in capsys.readouterr().err


def test_the_workloads_are_those_that_the_references_name() -> None:
    names = {load.name for load in workloads.standard()} | {"start"}
    for model, cells in records.REFERENCES.items():
        if model == "about":
            continue
        assert model.split()[0] in models.MODELS
        assert cells.keys() <= names
        assert all(metric in workloads.METRICS for cell in cells.values() for metric in cell)
    prompts, outputs = workloads.Mixed().requests()
    assert (sum(map(len, prompts)), sum(outputs)) == (142_827, 133_966)


class Recorder:
    """A driver that keeps all prompts, and answers as an engine with a prefix cache would."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, ...]] = []
        self._draws = random.Random(1)

    def ids(self, count: int) -> list[int]:
        return self._draws.choices(range(10_000), k=count)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [self.ids(length) for _ in range(count)]

    def timed(self, prompts: Any, outputs: Any, **_: Any) -> float:
        self.seen += map(tuple, prompts)
        return 1.0 + len(self.seen)


@pytest.mark.parametrize("load", workloads.small(), ids=lambda load: load.name)
def test_no_prompt_is_used_twice(load: Any) -> None:
    recorder = Recorder()
    load.warm_up(recorder)
    for _ in range(2):
        assert all(value for value in load.measure(recorder).values())
    assert len(set(recorder.seen)) == len(recorder.seen)


def test_a_run_that_hits_the_cache_or_ends_early_means_nothing(tmp_path: Path) -> None:
    path = models.MODELS["tiny"].write(tmp_path)
    with LLM(path, load_format="dummy", max_model_len=64, **SMALL) as llm:
        driver = workloads.Driver(llm)
        prompts = driver.prompts(1, 40)
        assert driver.timed(prompts, 2) > 0
        with pytest.raises(workloads.BadRunError, match="32 cached tokens instead of 0"):
            driver.timed(prompts, 2)
        assert driver.timed(prompts, 2, cached=32) > 0


def test_a_ratio_above_one_is_a_lead_and_is_scaled_by_the_limit_that_bounds_it() -> None:
    faster_card = {"read": 2 * 4.47, "copy": 1.0, "gemm": 747.0}
    assert records.ratio(record()) == pytest.approx(4.955 / 4.0)
    assert records.scaled_ratio(record()) == pytest.approx(4.955 / 4.0)
    scaled = records.scaled_ratio(record(ceilings=faster_card))
    assert scaled == pytest.approx(4.955 / 4.0 / 2)
    rate = record(metric="input", figure=200.0, reference=100.0, ceilings=faster_card)
    assert records.ratio(rate) == records.scaled_ratio(rate) == 2.0
    assert records.ratio(record(reference=None)) is None
    assert records.row(record(checked=False))[3] == "4 ms (failed the check)"


def test_only_records_of_the_commit_count_and_only_checked_ones_where_a_check_is_wanted(
    tmp_path: Path,
) -> None:
    book, variant = records.Book(tmp_path, "c" * 40), records.Variant("llama-3.1-8b")
    assert not book.has(variant, "closed-1", checked=False)
    book.write(variant, "closed-1", [record(checked=None)])
    assert book.has(variant, "closed-1", checked=False)
    assert not book.has(variant, "closed-1", checked=True)
    assert not records.Book(tmp_path, "d" * 40).has(variant, "closed-1", checked=False)
    assert not book.has(attrs.evolve(variant, quantization="fp8"), "closed-1", checked=False)
    book.path(variant, "closed-1").write_text("[{")
    assert not book.has(variant, "closed-1", checked=False)


def test_the_median_of_the_runs_is_the_figure() -> None:
    variant = records.Variant("llama-3.1-8b", quantization="fp8")
    runs = [{"TPOT": value} for value in (3.0, 9.0, 4.0)]
    (made,) = records.make_records(variant, "closed-1", 1, runs, {})
    assert (made["figure"], made["lowest"], made["highest"], made["runs"]) == (4.0, 3.0, 9.0, 3)
    assert made["reference"] == 3.512


def test_a_wrong_op_is_found_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.MODELS["tiny"]
    settings = {**model.settings, "max_model_len": 256, "skip_tokenizer_init": True}
    right = pegboard_platform_cpu.ops.rms_norm
    monkeypatch.setattr(pegboard_platform_cpu.ops, "rms_norm", lambda *a: right(*a) * 1.05)
    verdict = check.run_check(model, settings, None)
    assert not verdict.passed
    assert "log-probabilities differ" in str(verdict)


def test_a_near_tie_may_part_two_engines_and_nothing_else_may() -> None:
    plain = [[(5, {5: -1.0, 6: -1.1}), (7, {7: -0.5, 8: -3.0}), (1, {1: -0.1}), (1, {1: -0.1})]]

    def fast(step: int, token: int, values: dict[int, float]) -> list[list[Any]]:
        row = [*plain[0]]
        row[step] = (token, values)
        return [row]

    assert check.compare(plain, plain, 0.15).positions == 4
    tie = check.compare(plain, fast(2, 9, {1: -0.1}), 0.15)
    assert "token 9 instead of 1" in tie.faults[0]
    near = check.compare(plain * 2, [plain[0], fast(0, 6, {5: -1.06, 6: -1.04})[0]], 0.15)
    assert near.passed and near.positions == 5
    assert "2.5000 less likely" in check.compare(plain, fast(1, 8, plain[0][1][1]), 0.15).faults[0]
    for bad in ({7: -0.9}, {7: float("nan")}, {9: -0.5}):
        assert not check.compare(plain, fast(1, 7, bad), 0.15).passed
    assert not check.compare(plain, [plain[0][:2]], 0.15).passed


def test_checked_models_load_as_their_family_reads_them(tmp_path: Path) -> None:
    """Every architecture whose family is installed, in small."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 500, "head_dim": 16}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    loaded = []
    for name in bench_gpu.STANDARD:
        model = models.MODELS[name]
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
        own = sizes | (experts if "num_experts" in model.config else {})
        small = attrs.evolve(
            model, config={**model.config, **own, "eos_token_id": 1, "bos_token_id": 2}
        )
        path = models.write_weights(small, tmp_path / name)
        try:
            llm = LLM(path, skip_tokenizer_init=True, max_model_len=256, **SMALL)
        except MissingPluginError:
            continue
        with llm:
            answers = check._generate(llm, [[3, 4, 5]], 8)
        loaded.append(name)
        spread = list(answers[0][0][1].values())
        assert max(spread) - min(spread) > 0.1, "logits are flat: a fault would not show"
    assert "llama-3.1-8b" in loaded


def test_weights_and_work_are_counted_as_published() -> None:
    llama, qwen, moe = (models.MODELS[name].sizes() for name in bench_gpu.STANDARD)
    assert llama.weights_read(1) / 1e9 == pytest.approx(8.03 - 0.525, abs=0.01)
    assert qwen.weights_read(1) / 1e9 == pytest.approx(0.596, abs=0.003)
    assert moe.weights_read(1) / 1e9 == pytest.approx(3.35 - 0.31, abs=0.02)
    assert moe.weights_read(10_000) / 1e9 == pytest.approx(30.5 - 0.31, abs=0.1)
    assert llama.kv_elements(1) == 2 * 32 * 8 * 128
    assert llama.flops(1, 1, 1) == pytest.approx(2 * llama.weights_read(1), rel=1e-3)


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "gemm"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob", "attention"),
        ("_paged_decode_kernel", "attention"),
        ("_qk_norm_rope_store_kernel", "rope"),
        ("_add_rms_norm_kernel", "norm"),
        ("_argmax_kernel", "sampling"),
        ("_experts_gate_up_kernel", "gemm"),
        ("void at::native::elementwise_kernel<128, 4>", "other"),
    ],
)
def test_kernels_are_grouped_by_name(kernel: str, group: str) -> None:
    assert profiling.group_of(kernel) == group


def test_the_idle_share_counts_overlapping_and_nested_work_once() -> None:
    def event(name: str, start: float, length: float, tid: int, cat: str = "kernel") -> Any:
        return {"ph": "X", "name": name, "ts": start, "dur": length, "tid": tid, "cat": cat}

    events = [
        event("gemm", 0, 40, 7),
        event("_add_rms_norm", 30, 20, 8),
        event("nested", 5, 10, 7),
        event("launch", 0, 100, 1, "cuda_runtime"),
        event("gemm", 80, 20, 7),
    ]
    pieces = profiling.pieces_of(events, profiling.DEVICE_WORK)
    assert [piece.name for piece in pieces] == ["gemm", "_add_rms_norm", "gemm"]
    found = profiling.summarise("x", 2, 1.0, pieces, (1.0, 1.0))
    assert found.idle == pytest.approx(0.3)
    assert found.groups == pytest.approx({"gemm": 0.75, "norm": 0.25})
    assert found.launches == 1.5
