"""Names that are in use: whoever writes a plugin is warned of them, and it is written all the
same."""

from __future__ import annotations

from pathlib import Path

import pytest

from pegboard import __version__
from pegboard.testing.boards import board_of
from pegboard_testkit.scaffold import new
from pegboard_testkit.taken import names_in_use


@pytest.mark.parametrize(
    ("surface", "name", "warned"),
    [
        ("model", "llama", ("pegboard-model-llama {v} is installed: this plugin would take its",)),
        ("model", "mistral", ("model 'hf:MistralForCausalLM' is registered by pegboard-model",)),
        ("alias", "llama", ("the id 'llama'", "model 'hf:LlamaForCausalLM' is registered by")),
        ("logits", "scripted-parity", ("logits 'scripted_parity'", "logits 'scripted-parity'")),
        ("quant", "compressed-tensors", ("quant 'method:compressed-tensors' is registered by",)),
        ("ops", "cpu", ("the id 'cpu'", "ops 'cpu.silu_mul' is registered by")),
        ("platform", "torch", ("attention 'torch' is registered by",)),
        ("command", "run", ("command 'run' is registered by pegboard-core ",)),
        ("connector", "testkit", ("the id 'testkit' is that of pegboard-testkit ",)),
    ],
)
def test_what_is_in_use_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], surface: str, name: str, warned: list[str]
) -> None:
    new(surface, name, str(tmp_path / "new"))
    said = capsys.readouterr()
    assert "has a plugin for the surface" in said.out
    lines = [line for line in said.err.splitlines() if line.startswith("Warning: ")]
    for text in warned:
        assert any(text.format(v=__version__) in line for line in lines), (text, lines)


def test_what_is_left_out_or_not_installed_counts_too() -> None:
    names = {
        "name": "llama",
        "key": "llama",
        "cls": "Llama",
        "distribution": "somebodys-llama",
        "module": "json",
    }
    said = names_in_use("model", names, board_of("testkit"))
    assert said == [
        f"the id 'llama' is that of pegboard-model-llama {__version__}: with both installed, "
        "neither loads",
        "the module 'json' can be imported already: one would hide the other",
        "model 'llama' is what a plugin of this release is called",
        "model 'hf:LlamaForCausalLM' is what a plugin of this release is called",
    ]
    assert names_in_use("tracer", {**names, "name": "mine", "module": "mine"}, board_of()) == []
