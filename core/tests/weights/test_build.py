from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.api.model import ModelFamily
from pegboard.config import EngineConfig
from pegboard.config.model import resolve_model
from pegboard.errors import CheckpointError, MissingPluginError
from pegboard.nn import OpTable
from pegboard.plugins import Board, build_board
from pegboard.weights import load_model

Build = Callable[..., Any]


@pytest.fixture
def board(toy_family: ModelFamily) -> Board:
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=[("model", toy_family)])


@pytest.fixture
def build(board: Board) -> Build:
    """Resolve and load a directory."""

    def run(folder: Path, *, progress: Any = None, **options: Any) -> Any:
        config = EngineConfig(model=str(folder), **options)
        model = resolve_model(board, config)
        return load_model(
            board,
            config,
            model,
            device=torch.device("cpu"),
            dtype=getattr(torch, model.dtype),
            ops=OpTable.plain(),
            platform_facts={},
            progress=progress,
        )

    return run


def check(built: Any, tensors: dict[str, torch.Tensor], layers: int = 2, head: bool = True) -> None:
    """Every weight of the built model is the stored one."""
    weights = built.weights()
    expected = {"embed": ["model.embed"]} | ({"head": ["lm_head"]} if head else {})
    for i in range(layers):
        expected[f"layers.{i}.pair"] = [f"model.layers.{i}.{part}" for part in "ab"]
        expected[f"layers.{i}.norm"] = [f"model.layers.{i}.norm"]
    assert set(weights) == set(expected)
    for prefix, names in expected.items():
        for got, name in zip(weights[prefix], names, strict=True):
            assert torch.equal(got, tensors[f"{name}.weight"].to(got.dtype)), name


def test_a_model_is_built_filled_and_frozen(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    tensors = toy_tensors() | {"model.rotary.inv": torch.ones(4)}
    seen: list[tuple[int, int]] = []
    built = build(write_checkpoint(tmp_path, tensors), progress=lambda *at: seen.append(at))
    check(built, tensors)
    assert not built.training
    total = sum(t.nbytes for name, t in tensors.items() if "rotary" not in name)
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert len(seen) == 6


def test_o34a_a_tied_model_without_a_head_loads(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    tensors = toy_tensors(head=False)
    check(build(write_checkpoint(tmp_path, tensors, config={"tied": True})), tensors, head=False)


def test_o34b_a_tied_model_with_a_stored_head_loads_tied(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    tensors = toy_tensors(head=True)
    check(build(write_checkpoint(tmp_path, tensors, config={"tied": True})), tensors, head=False)


def test_o34c_an_untied_model_without_a_head_is_refused(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    with pytest.raises(CheckpointError, match=r"1 tensor missing: 'lm_head\.weight'"):
        build(write_checkpoint(tmp_path, toy_tensors(head=False)))


def test_o34h_an_unknown_extra_tensor_is_refused(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    tensors = toy_tensors() | {"model.layers.0.c.weight": torch.ones(2)}
    with pytest.raises(
        CheckpointError, match=r"not expected: 'model\.layers\.0\.c\.weight' \(in .*unknown"
    ):
        build(write_checkpoint(tmp_path, tensors))


def test_o34i_float16_tensors_load_in_the_dtype_that_the_configuration_states(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    tensors = toy_tensors(dtype=torch.float16)
    built = build(write_checkpoint(tmp_path, tensors, config={"dtype": "bfloat16"}))
    assert built.weights()["layers.0.pair"][0].dtype == torch.bfloat16
    assert built.weights()["layers.0.norm"][0].dtype == torch.float32
    check(built, tensors)


@pytest.mark.parametrize("stored", [1, 3])
def test_missing_and_extra_layers_are_refused(
    stored: int, tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    folder = write_checkpoint(tmp_path, toy_tensors(layers=stored))
    words = (
        r"3 tensors missing: 'model\.layers\.1\.a\.weight'"
        if stored == 1
        else r"3 tensors not expected: .* is of layer 2, but the configuration has 2 layers"
    )
    with pytest.raises(CheckpointError, match=words):
        build(folder)


@pytest.mark.parametrize(
    "lost", ["model.embed.weight", "model.layers.1.b.weight", "model.layers.0.norm.weight"]
)
def test_any_missing_tensor_is_named(
    lost: str, tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    tensors = toy_tensors()
    del tensors[lost]
    with pytest.raises(CheckpointError) as caught:
        build(write_checkpoint(tmp_path, tensors))
    assert f"1 tensor missing: '{lost}'" in str(caught.value)


def test_random_weights_need_no_weight_files(tmp_path: Path, build: Build) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["ToyModel"]}))
    with pytest.raises(CheckpointError, match=r"holds no weights.*load_format='dummy'"):
        build(tmp_path)
    weights = [build(tmp_path, load_format="dummy").weights() for _ in range(2)]
    assert torch.equal(weights[0]["embed"][0], weights[1]["embed"][0])
    for tensors in weights[0].values():
        for tensor in tensors:
            assert 0 < tensor.abs().max() <= 1e-3


def test_a_quantised_checkpoint_needs_its_plugin(
    tmp_path: Path, build: Build, write_checkpoint: Any, toy_tensors: Any
) -> None:
    folder = write_checkpoint(
        tmp_path, toy_tensors(), config={"quantization_config": {"quant_method": "exotic"}}
    )
    with pytest.raises(MissingPluginError, match="method:exotic"):
        build(folder)
