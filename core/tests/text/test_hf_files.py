"""Tokeniser and templates are read from a checkpoint directory, and its contradictions are
found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pegboard.errors import CheckpointError, UnsupportedError
from pegboard.text.hf_files import chat_templates_from_dir, tokenizer_spec_from_dir
from pegboard.text.tokenizer import Tokenizer


def write(folder: Path, name: str, content: Any) -> None:
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, byte_level: Tokenizer) -> Path:
    write(tmp_path, "tokenizer.json", byte_level.spec.json)
    return tmp_path


def test_a_bare_tokenizer_json_is_enough(folder: Path) -> None:
    spec = tokenizer_spec_from_dir(folder)
    assert (spec.vocab_size, spec.bos_token_id, spec.eos_token_ids) == (259, None, ())
    assert (spec.add_bos, spec.add_eos, dict(spec.special_tokens)) == (None, None, {})
    assert Tokenizer.from_spec(spec).encode("A") == [0x41]


def test_named_tokens_come_as_texts_or_objects_and_from_either_file(folder: Path) -> None:
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": None,
        "add_bos_token": True,
    }
    write(folder, "tokenizer_config.json", config)
    write(
        folder,
        "special_tokens_map.json",
        {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "[PAD]"},
    )
    spec = tokenizer_spec_from_dir(folder)
    assert (spec.bos_token_id, spec.eos_token_ids, spec.pad_token_id) == (256, (257,), None)
    assert (spec.add_bos, spec.add_eos) == (True, None)
    assert spec.special_tokens == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "[PAD]"}
    assert Tokenizer.from_spec(spec).encode("A") == [256, 0x41]


def test_further_named_tokens_reach_the_templates(folder: Path) -> None:
    write(folder, "tokenizer_config.json", {"extra_special_tokens": {"image_token": "<image>"}})
    assert tokenizer_spec_from_dir(folder).special_tokens == {"image_token": "<image>"}
    write(folder, "tokenizer_config.json", {"extra_special_tokens": ["<image>"]})
    assert tokenizer_spec_from_dir(folder).special_tokens == {}


def test_tokens_that_only_the_configuration_lists_are_added(folder: Path) -> None:
    listed = {
        "256": {"content": "<s>", "special": True},
        "259": {"content": "<|end|>", "special": True},
    }
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": listed, "eos_token": "<|end|>"})
    spec = tokenizer_spec_from_dir(folder)
    tokenizer = Tokenizer.from_spec(spec)
    assert spec.vocab_size == 260 and spec.eos_token_ids == (259,)
    assert tokenizer.encode("A<|end|>") == [0x41, 259] and tokenizer.is_special(259)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"tokenizer_config\.json: not valid JSON"),
        ([], r"tokenizer_config\.json: a JSON object is expected, not list"),
        ({"bos_token": "<none>"}, r"config\.json: bos_token '<none>' is not in the vocabulary"),
        ({"eos_token": 3}, r"tokenizer_config\.json: eos_token 3 is neither"),
        ({"add_bos_token": "yes"}, r"config\.json: add_bos_token 'yes' is neither true nor false"),
        ({"added_tokens_decoder": {"256": {"content": "<x>"}}}, r"256 is '<s>', but .* says '<x>'"),
        ({"added_tokens_decoder": {"x": {"content": "y"}}}, r"config\.json: added_tokens_decoder"),
        ({"added_tokens_decoder": ["y"]}, r"tokenizer_config\.json: added_tokens_decoder"),
    ],
)  # fmt: skip
def test_faults_of_the_configuration_are_named(folder: Path, config: Any, message: str) -> None:
    write(folder, "tokenizer_config.json", config)
    with pytest.raises(CheckpointError, match=message):
        tokenizer_spec_from_dir(folder)


def test_a_broken_tokenizer_json_is_named(folder: Path) -> None:
    write(folder, "tokenizer.json", '{"model": {"vocab": {"a": "b"}}}')
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a tokeniser"):
        tokenizer_spec_from_dir(folder)
    (folder / "tokenizer.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: cannot be read"):
        tokenizer_spec_from_dir(folder)


def test_a_directory_with_another_tokeniser_says_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json$"):
        tokenizer_spec_from_dir(tmp_path)
    write(tmp_path, "tokenizer.model", "")
    with pytest.raises(
        UnsupportedError, match=r"tokenizer\.model cannot be used .* save_pretrained"
    ):
        tokenizer_spec_from_dir(tmp_path)


def test_templates_come_from_every_place_that_is_in_use(folder: Path) -> None:
    assert chat_templates_from_dir(folder) == {}
    write(folder, "tokenizer_config.json", {"chat_template": "one"})
    assert chat_templates_from_dir(folder) == {"default": "one"}
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "tools"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert chat_templates_from_dir(folder) == {"default": "two", "tool_use": "tools"}
    write(folder, "chat_template.json", {"chat_template": "three"})
    assert chat_templates_from_dir(folder)["default"] == "three"
    write(folder, "chat_template.jinja", "four")
    write(folder, "additional_chat_templates/rag.jinja", "five")
    assert chat_templates_from_dir(folder) == {
        "default": "four",
        "tool_use": "tools",
        "rag": "five",
    }


@pytest.mark.parametrize("value", [3, [{"name": "x"}], [{"name": "x", "template": 3}], ["x"]])
def test_malformed_templates_are_refused(folder: Path, value: Any) -> None:
    write(folder, "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat"):
        chat_templates_from_dir(folder)
