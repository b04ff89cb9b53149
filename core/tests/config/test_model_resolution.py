from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import save_file

from pegboard.api.kv import FullAttentionSpec, KVSlot
from pegboard.api.model import ModelFacts, ModelFamily
from pegboard.config import EngineConfig
from pegboard.config.model import (
    ResolvedModel,
    choose_dtype,
    choose_max_model_len,
    resolve_model,
)
from pegboard.errors import CheckpointError, ConfigError, MissingPluginError, UnsupportedError
from pegboard.plugins import Board, build_board
from pegboard.weights.safetensors_source import SafetensorsCheckpoint

Resolve = Callable[..., ResolvedModel]


@attrs.frozen
class ToyConfig:
    facts: ModelFacts


def read_config(source: Any) -> ToyConfig:
    slots = (
        KVSlot(0, "self", FullAttentionSpec(2, 8, "auto")),
        KVSlot(1, "self", shares="0.self"),
        KVSlot(2, "self", FullAttentionSpec(2, 8, "float32")),
    )
    raw = {"positions": 128, "dtype": "bfloat16", "eos": [1], "limit": None, **source.raw}
    assert source.kind == "hf"
    assert source.architecture == "ToyModel"
    assert "x" in source.tensor_names
    limit = (raw["limit"], "sliding_window=64 is not built") if raw["limit"] else None
    return ToyConfig(
        ModelFacts(
            3, 16, 100, raw["positions"], slots, tuple(raw["eos"]),
            stored_dtype=raw["dtype"], position_limit=limit,
        )
    )  # fmt: skip


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    module: Any = ModuleType("toy_config_family_for_tests")
    module.config = read_config
    monkeypatch.setitem(sys.modules, module.__name__, module)
    reference = f"{module.__name__}:config"
    family = ModelFamily("toy", {"hf": ("ToyModel",)}, reference, reference, reference)
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=[("model", family)])


@pytest.fixture
def resolve(board: Board, tmp_path: Path) -> Resolve:
    """Write a directory with these contents and resolve it."""

    def run(
        raw: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        tensors: dict[str, Any] | None = None,
        tokenizer: dict[str, Any] | None = None,
        supported: tuple[str, ...] | None = None,
        **options: Any,
    ) -> ResolvedModel:
        (tmp_path / "config.json").write_text(
            json.dumps({"architectures": ["ToyModel"], **(raw or {})})
        )
        save_file(tensors or {"x": np.zeros((4, 8), np.float32)}, tmp_path / "model.safetensors")
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))
        if tokenizer is not None:
            vocab = {"a": 0, "<a>": 7, "<b>": 8}
            content = {"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": []}
            (tmp_path / "tokenizer.json").write_text(json.dumps(content))
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
        return resolve_model(
            board, EngineConfig(model=str(tmp_path), **options), supported=supported
        )

    return run


def test_a_model_is_resolved_with_all_that_follows(resolve: Resolve, tmp_path: Path) -> None:
    model = resolve(
        generation={"temperature": 0.5, "eos_token_id": [2, 500]}, tokenizer={"eos_token": "<a>"}
    )
    assert model.path == str(tmp_path)
    assert model.family.name == "toy"
    assert model.architecture == "ToyModel"
    assert model.dtype == "bfloat16"
    assert model.max_model_len == 128
    assert model.sampling_defaults == {"temperature": 0.5}
    assert model.eos_token_ids == (1, 2, 7)
    assert model.weight_bytes == 4 * 8 * 2
    assert not model.quantised
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == 9


def test_without_a_tokeniser_the_reason_is_kept(resolve: Resolve) -> None:
    model = resolve()
    assert model.tokenizer is None
    assert "tokenizer.json" in model.tokenizer_problem
    assert model.eos_token_ids == (1,)


@pytest.mark.parametrize(
    ("asked", "cache"), [("auto", "float32"), ("float16", "float16"), ("fp8", "float8_e4m3fn")]
)
def test_the_cache_dtype_is_decided_for_slots_that_leave_it_open(
    asked: str, cache: str, resolve: Resolve
) -> None:
    slots = resolve(dtype="float32", kv_cache_dtype=asked).facts.kv_slots
    assert [slot.spec.dtype if slot.spec else None for slot in slots] == [cache, None, "float32"]


def test_a_device_decides_dtype_cache_and_size_again(resolve: Resolve, tmp_path: Path) -> None:
    model = resolve({"dtype": "float16"})
    config = EngineConfig(model=str(tmp_path))
    assert model.dtype == "float16"
    there = model.on_device(config, ("bfloat16", "float32"))
    assert there.dtype == "float32"
    assert there.facts.kv_slots[0].spec is not None
    assert there.facts.kv_slots[0].spec.dtype == "float32"
    assert there.weight_bytes == 2 * model.weight_bytes
    with pytest.raises(ConfigError, match="dtype='float16' is not allowed on this device"):
        model.on_device(EngineConfig(model=str(tmp_path), dtype="float16"), ("bfloat16", "float32"))


@pytest.mark.parametrize(
    ("requested", "stored", "quantised", "supported", "chosen"),
    [
        ("auto", "bfloat16", False, None, "bfloat16"),
        ("auto", "bfloat16", False, ("bfloat16", "float32"), "bfloat16"),
        ("auto", "float32", False, ("bfloat16", "float32"), "float32"),
        ("auto", "float64", False, ("bfloat16", "float32"), "float32"),
        ("auto", "float16", False, ("bfloat16", "float32"), "float32"),
        ("auto", "float16", False, ("float16", "float32"), "float16"),
        ("auto", "bfloat16", False, ("float16",), "float16"),
        ("auto", "float32", True, ("bfloat16", "float32"), "bfloat16"),
        ("auto", "float32", True, ("float32", "bfloat16"), "bfloat16"),
        ("auto", "float32", True, ("float32", "float16"), "float32"),
        ("auto", "float32", True, None, "bfloat16"),
        ("float32", "bfloat16", True, ("bfloat16", "float32"), "float32"),
        ("float16", "bfloat16", False, None, "float16"),
    ],
)
def test_the_compute_dtype_follows_the_documented_rule(
    requested: str, stored: str, quantised: bool, supported: tuple[str, ...] | None, chosen: str
) -> None:
    assert choose_dtype(requested, stored, quantised, supported) == chosen


def test_a_stored_dtype_that_nothing_computes_in_must_be_chosen_by_hand() -> None:
    with pytest.raises(ConfigError, match=r"'float8_e4m3fn'.*float32, bfloat16, float16"):
        choose_dtype("auto", "float8_e4m3fn", False, ("bfloat16",))


def facts(positions: int, limit: tuple[int, str] | None = None) -> ModelFacts:
    return ModelFacts(1, 8, 10, positions, (), position_limit=limit)


def test_the_context_is_the_models_unless_a_shorter_one_is_asked_for() -> None:
    assert choose_max_model_len(None, facts(128)) == 128
    assert choose_max_model_len(100, facts(128)) == 100
    with pytest.raises(ConfigError, match=r"max_model_len=129 .* at most 128 positions"):
        choose_max_model_len(129, facts(128))


def test_a_context_beyond_what_is_built_is_refused_by_name_with_the_remedy() -> None:
    limited = facts(128, (64, "sliding_window=64 is not built"))
    assert choose_max_model_len(64, limited) == 64
    for asked in (None, 65):
        with pytest.raises(
            UnsupportedError, match=r"sliding_window=64.* set max_model_len to at most 64"
        ):
            choose_max_model_len(asked, limited)


def test_the_limit_reaches_the_user(resolve: Resolve) -> None:
    with pytest.raises(UnsupportedError, match="sliding_window"):
        resolve({"limit": 64})
    assert resolve({"limit": 64}, max_model_len=64).max_model_len == 64


def test_an_architecture_without_a_plugin_is_named(resolve: Resolve) -> None:
    with pytest.raises(MissingPluginError, match="hf:OtherModel"):
        resolve({"architectures": ["OtherModel"]})


def test_the_first_architecture_that_a_family_claims_is_taken(resolve: Resolve) -> None:
    assert resolve({"architectures": ["OtherModel", "ToyModel"]}).architecture == "ToyModel"


def test_packed_weights_count_as_stored(resolve: Resolve) -> None:
    tensors = {"x": np.zeros((4, 8), np.float16), "y": np.zeros(10, np.int32)}
    assert not resolve(tensors=tensors).quantised
    model = resolve({"quantization_config": {"quant_method": "int4"}}, tensors=tensors)
    assert model.quantised
    assert model.weight_bytes == 4 * 8 * 2 + 40


def test_bad_end_ids_are_refused_by_file(resolve: Resolve) -> None:
    with pytest.raises(CheckpointError, match="eos_token_id of the generation defaults"):
        resolve(generation={"eos_token_id": "end"})


def test_a_checkpoint_that_is_refused_is_closed(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    monkeypatch.setattr(SafetensorsCheckpoint, "close", lambda opened: closed.append(opened.path))
    path = resolve().path
    assert closed == []
    with pytest.raises(ConfigError):
        resolve(max_model_len=129)
    assert closed == [path]


def test_resolving_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NoSuchModel"]}')
    save_file({"x": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    code = (
        "import sys\n"
        "from pegboard.config import EngineConfig\n"
        "from pegboard.config.fit import check_fit\n"
        "from pegboard.config.model import resolve_model\n"
        "from pegboard.errors import MissingPluginError\n"
        "from pegboard.plugins import build_board\n"
        f"config = EngineConfig(model={str(tmp_path)!r})\n"
        "try:\n"
        "    resolve_model(build_board(environ={'VLLM_PLUGINS': ''}), config)\n"
        "except MissingPluginError:\n"
        "    print('refused', 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "refused False\n", done.stderr
