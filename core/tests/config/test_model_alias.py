"""Architectures under other names."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.alias import ModelAlias
from pegboard.config.engine import EngineConfig
from pegboard.config.model import resolve_model
from pegboard.errors import ConfigError, DuplicateError, MissingPluginError, PluginError
from pegboard.plugins import load_plugins
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.families import TINY_FAMILY


def write(folder: Path, name: str = "OwnForCausalLM", **changes: Any) -> Path:
    write_tiny_model(folder)
    raw = json.loads((folder / "config.json").read_text())
    raw.update(architectures=[name], **changes)
    (folder / "config.json").write_text(json.dumps(raw))
    return folder


def resolve(folder: Path, *aliases: ModelAlias) -> Any:
    pairs = [("model", TINY_FAMILY), *(("alias", alias) for alias in aliases)]
    board = load_plugins(environ={"VLLM_PLUGINS": ""}, extra=pairs)
    return resolve_model(board, EngineConfig(model=str(folder)))


@pytest.fixture
def rewriting(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("rewriting_of_tests")

    def narrow(raw: Any) -> Any:
        return {**{k: v for k, v in raw.items() if k != "breadth"}, "hidden": raw["breadth"]}

    vars(module).update(narrow=narrow, none=lambda raw: None, fails=lambda raw: raw["nothing"])
    monkeypatch.setitem(sys.modules, "rewriting_of_tests", module)


@pytest.mark.parametrize("of", ["PegboardTiny", "tiny"])
def test_an_alias_leads_to_an_architecture_or_to_a_family(tmp_path: Path, of: str) -> None:
    model = resolve(write(tmp_path), ModelAlias("OwnForCausalLM", of=of))
    assert (model.family.name, model.architecture) == ("tiny", "PegboardTiny")
    assert model.checkpoint.tensors and model.tokenizer is not None


def test_the_configuration_may_be_rewritten(tmp_path: Path, rewriting: None) -> None:
    folder = write(tmp_path, breadth=32)
    with pytest.raises(ConfigError, match="breadth"):
        resolve(folder, ModelAlias("OwnForCausalLM", of="tiny"))
    alias = ModelAlias("OwnForCausalLM", of="tiny", config="rewriting_of_tests:narrow")
    model = resolve(folder, alias)
    assert model.facts.hidden_size == 32
    assert "breadth" not in model.checkpoint.config


@pytest.mark.parametrize(("name", "said"), [("none", "returned a NoneType"), ("fails", "KeyError")])
def test_a_rewriting_that_fails_is_told(
    tmp_path: Path, rewriting: None, name: str, said: str
) -> None:
    alias = ModelAlias("OwnForCausalLM", of="tiny", config=f"rewriting_of_tests:{name}")
    with pytest.raises(PluginError, match=said):
        resolve(write(tmp_path), alias)


def test_an_alias_of_nothing_names_what_is_missing(tmp_path: Path) -> None:
    for of in ("LlamaForCausalLM", "llama"):
        with pytest.raises(MissingPluginError, match="pegboard-model-llama") as caught:
            resolve(write(tmp_path), ModelAlias("OwnForCausalLM", of=of))
        assert "alias 'OwnForCausalLM'" in str(caught.value)


def test_a_name_that_a_family_claims_too_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, "PegboardTiny")
    with pytest.raises(DuplicateError, match=r"belongs to a model family of .* and to an alias of"):
        resolve(folder, ModelAlias("PegboardTiny", of="tiny"))


def test_an_alias_of_another_kind_of_checkpoint_is_not_meant(tmp_path: Path) -> None:
    with pytest.raises(MissingPluginError, match="OwnForCausalLM"):
        resolve(write(tmp_path), ModelAlias("OwnForCausalLM", of="tiny", kind="gguf"))
    with pytest.raises(PluginError, match="a name is wanted"):
        ModelAlias("", of="tiny")
