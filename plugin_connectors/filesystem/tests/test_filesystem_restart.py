"""A real model, restarted: what it need not compute again, and that its tokens stay the same."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from pegboard import LLM, SamplingParams
from pegboard.errors import CheckpointError, ConfigError
from pegboard.testing.checkpoints import write_tiny_model

COMMON = {"max_model_len": 256, "max_num_seqs": 4, "num_gpu_blocks_override": 128}
STEM = [3 + n * 7 % 200 for n in range(150)]
PROMPTS = [[*STEM, *([5 + n] * 20)] for n in range(6)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=5)


@contextmanager
def engine(model: Path, folder: Path | None, **options: Any) -> Iterator[LLM]:
    """An engine that keeps blocks in `folder`, or none."""
    if folder is not None:
        options["kv_transfer_config"] = {
            "kv_connector": "filesystem",
            "kv_connector_extra_config": {"path": str(folder)},
        }
    with LLM(str(model), **{"dtype": "float32", **COMMON, **options}) as llm:
        yield llm


def retrain(model: Path) -> None:
    """A few rows of the weights, in their place."""
    weights = load_file(model / "model.safetensors")
    weights["embed.weight"][100:110] *= -1
    save_file(weights, model / "model.safetensors")


def answers(llm: LLM) -> list[list[int]]:
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


def hit_tokens(llm: LLM) -> int:
    return llm.engine.stats().cache.external_hit_tokens


def test_after_a_restart_the_prompts_come_from_the_disk(model: Path, tmp_path: Path) -> None:
    with engine(model, None) as llm:
        expected = answers(llm)
    with engine(model, tmp_path) as llm:
        assert answers(llm) == expected
        assert hit_tokens(llm) == 0
    with engine(model, tmp_path) as llm:
        outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
        cache, figures = llm.engine.stats().cache, llm.engine.stats().connector
    assert [output.outputs[0].token_ids for output in outputs] == expected
    assert [output.num_cached_tokens for output in outputs] == [160] * 6
    saved, asked = cache.external_hit_tokens, cache.external_queried_tokens
    assert saved == 160 + 5 * 16, "the first prompt whole, of the others what is their own"
    assert figures["filesystem_hit_tokens"] == saved
    print(
        f"after the restart {saved} of {asked} prompt tokens came from the disk "
        f"({saved / asked:.0%}), {figures['filesystem_hits']:.0f} of "
        f"{figures['filesystem_lookups']:.0f} requests found something"
    )


@pytest.mark.parametrize("level", [1, 2])
def test_after_sleep_the_prompts_come_from_the_disk(
    model: Path, tmp_path: Path, level: int
) -> None:
    with engine(model, tmp_path) as llm:
        expected = answers(llm)
        for times in (1, 2):
            llm.sleep(level)
            llm.wake_up()
            assert answers(llm) == expected
            figures = llm.engine.stats().connector
            assert figures["filesystem_hit_tokens"] == times * (160 + 5 * 16)


def test_weights_that_changed_during_sleep_do_not_wake_up(model: Path, tmp_path: Path) -> None:
    with engine(write_tiny_model(tmp_path / "model", seed=5), tmp_path / "kv") as llm:
        answers(llm)
        llm.sleep(2)
        retrain(tmp_path / "model")
        with pytest.raises(CheckpointError, match="changed during sleep"):
            llm.wake_up()
        assert llm.is_sleeping()


@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"},
        {"block_size": 32},
        {"kv_cache_dtype": "bfloat16"},
        {"kv_cache_dtype": "fp8"},
    ],
    ids=str,
)
def test_engines_that_compute_otherwise_find_nothing(
    model: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with engine(model, tmp_path) as llm:
        answers(llm)
    with engine(model, tmp_path, **options) as llm:
        answers(llm)
        assert hit_tokens(llm) == 0
    with engine(model, tmp_path, **options) as llm:
        answers(llm)
        assert hit_tokens(llm) > 0, "they have blocks of their own"


def test_other_weights_of_the_same_shape_find_nothing(model: Path, tmp_path: Path) -> None:
    with engine(model, tmp_path / "kv") as llm:
        answers(llm)
    other = write_tiny_model(tmp_path / "other", seed=6)
    with engine(other, tmp_path / "kv") as llm:
        answers(llm)
        assert hit_tokens(llm) == 0
    assert len([path for path in (tmp_path / "kv").iterdir() if path.is_dir()]) == 2


def test_a_model_retrained_in_a_few_rows_finds_nothing(model: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "retrained", seed=5)
    retrain(other)
    kept = tmp_path / "kept"
    with engine(model, kept) as llm:
        answers(llm)
    with engine(other, kept) as llm:
        answers(llm)
        assert hit_tokens(llm) == 0
    with engine(write_tiny_model(tmp_path / "copy", seed=5), kept) as llm:
        answers(llm)
        assert hit_tokens(llm) > 0, "a copy elsewhere is the same model"


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("kv-filesystem")]


def wait_for_the_end_of_threads() -> None:
    until = time.monotonic() + 10
    while threads() and time.monotonic() < until:
        time.sleep(0.01)
    assert not threads()


def test_an_engine_that_cannot_be_built_leaves_no_thread(model: Path, tmp_path: Path) -> None:
    wrong = {"scheduler_cls": "os:getcwd"}
    with pytest.raises(ConfigError, match="scheduler_cls"), engine(model, tmp_path, **wrong):
        pytest.fail("such a scheduler runs")
    wait_for_the_end_of_threads()


def test_an_engine_that_is_dropped_leaves_no_thread(model: Path, tmp_path: Path) -> None:
    kept = {
        "kv_connector": "filesystem",
        "kv_connector_extra_config": {"path": str(tmp_path), "threads": 2},
    }
    llm = LLM(str(model), kv_transfer_config=kept, dtype="float32", **COMMON)
    answers(llm)
    assert len(threads()) == 2
    del llm
    gc.collect()
    wait_for_the_end_of_threads()
