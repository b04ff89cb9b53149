"""A family goes with its plugin and comes back with it, and the core knows no family's name."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from pegboard import LLM, SamplingParams
from pegboard.errors import MissingPluginError
from pegboard.plugins import load_plugins

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILY = "pegboard-model-llama"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    torch.manual_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def answer(checkpoint: Path, **options: Any) -> int:
    with LLM(str(checkpoint), dtype="float32", num_gpu_blocks_override=8, **options) as llm:
        params = SamplingParams(max_tokens=4, ignore_eos=True)
        (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
        return len(output.outputs[0].token_ids)


def installed() -> dict[str, Path]:
    """Metadata folders of our distributions, by distribution."""
    site = Path(sysconfig.get_paths()["purelib"])
    folders = {path.name.split("-")[0].replace("_", "-"): path for path in site.glob("pegboard*")}
    return {name: path for name, path in folders.items() if path.suffix == ".dist-info"}


def test_a_family_that_is_not_installed_is_named_and_works_once_it_is(
    checkpoint: Path, tmp_path: Path
) -> None:
    present = installed()
    for name, path in present.items():
        if name != FAMILY:
            (tmp_path / path.name).symlink_to(path)
    with pytest.raises(MissingPluginError) as caught:
        answer(checkpoint, board=load_plugins(search_path=[str(tmp_path)]))
    message = str(caught.value)
    assert f"pip install {FAMILY}" in message
    assert "LlamaForCausalLM" in message and str(checkpoint) in message
    (tmp_path / present[FAMILY].name).symlink_to(present[FAMILY])
    assert answer(checkpoint, board=load_plugins(search_path=[str(tmp_path)])) == 4


def test_a_family_that_the_allowlist_leaves_out_is_named_with_the_variable(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "cpu,torch")
    with pytest.raises(MissingPluginError) as caught:
        answer(checkpoint)
    message = str(caught.value)
    assert "VLLM_PLUGINS" in message and "cpu,torch" in message
    assert FAMILY in message and "'llama'" in message
    monkeypatch.setenv("VLLM_PLUGINS", "cpu, torch ,llama")
    assert answer(checkpoint) == 4


def test_an_empty_allowlist_leaves_no_family_and_the_command_line_says_so(
    checkpoint: Path, pegboard: Any, one_clear_line: Any
) -> None:
    outcome = pegboard("run", str(checkpoint), "hello", env={"VLLM_PLUGINS": ""})
    one_clear_line(outcome, "VLLM_PLUGINS", FAMILY, code=1)


def words_of(tree: ast.AST) -> Iterator[str]:
    """Names and texts of a program; comments and strings that stand alone (docstrings) are not
    among them."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in alone:
            continue
        for field in ("id", "attr", "name", "arg", "module", "value"):
            word = getattr(node, field, None)
            if isinstance(word, str):
                yield word


FAMILIES = re.compile(r"llama(?!3\b)|mistral|smollm", re.IGNORECASE)
"""``llama3`` is the name of a way to scale positions, which other families use too."""


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('if name == "LlamaForCausalLM": pass', True),
        ("def load_llama(): pass", True),
        ("from x import mistral", True),
        ("import smollm", True),
        ('kind = "llama3"', False),
        ('"""As in Llama."""', False),
        ("x = 1  # as in Llama", False),
    ],
)
def test_the_reader_sees_names_and_texts_only(code: str, found: bool) -> None:
    assert any(FAMILIES.search(word) for word in words_of(ast.parse(code))) is found


def test_no_file_of_the_core_knows_a_familys_name(repo_root: Path) -> None:
    files = sorted((repo_root / "core" / "src").rglob("*.py"))
    assert files
    wrong = [
        f"{path.relative_to(repo_root)}: {word!r}"
        for path in files
        for word in words_of(ast.parse(path.read_text()))
        if FAMILIES.search(word)
    ]
    assert not wrong, "\n".join(wrong)
