"""What logits processors are told of the model: ends of sequence, tokeniser, settings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.errors import RequestError
from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model
from pegboard.testing.distributions import installed

SOURCE = '''
import attrs
from pegboard.api.hooks import hookimpl
from pegboard.api.logits import LogitsProcessor
from pegboard.errors import RequestError

PEGBOARD_API = {"logits": 0}


@attrs.frozen
class Settings:
    least: int = 3
    word: str = "e"


class Later:
    """No end of sequence among the first tokens: `later`, or as many as the settings say."""

    def __init__(self, ctx):
        self.ends = list(ctx.eos_token_ids)
        self.least = ctx.settings.least
        self.rows = {}

    def added(self, row):
        asked = row.arguments.get("later", self.least)
        ends = sorted({*self.ends, *row.end_ids})
        self.rows[row.slot] = (len(row.prompt_ids) + asked, ends)

    def removed(self, slot):
        self.rows.pop(slot, None)

    def apply(self, call):
        for row, (slot, length) in enumerate(zip(call.slots, call.lengths)):
            until, ends = self.rows[slot]
            if length < until:
                call.logits[row, ends] = float("-inf")
        return call.logits


class Taboo:
    """No token of some words, which the tokeniser knows."""

    def __init__(self, ctx):
        self.encode = ctx.tokenizer.encode
        self.rows = {}

    def added(self, row):
        words = "".join(row.arguments["taboo"])
        self.rows[row.slot] = self.encode(words, add_special_tokens=False)

    def removed(self, slot):
        self.rows.pop(slot, None)

    def apply(self, call):
        for row, slot in enumerate(call.slots):
            call.logits[row, self.rows[slot]] = float("-inf")
        return call.logits


def check_taboo(request):
    if request.tokenizer is None:
        raise RequestError("taboo needs a tokeniser", field="extra_args")
    ids = request.tokenizer.encode("".join(request.arguments["taboo"]), False)
    if request.tokenizer.encode(request.settings.word, False)[0] in ids:
        raise RequestError(f"{request.settings.word} cannot be taboo", field="extra_args")
    assert len(ids) < request.vocab_size and request.eos_token_ids == (1,)


@hookimpl
def pegboard_settings():
    return Settings


@hookimpl
def pegboard_logits_processors():
    return [
        LogitsProcessor(name="later", build="censor_plugin:Later", arguments=("later",)),
        LogitsProcessor(
            name="taboo",
            build="censor_plugin:Taboo",
            check="censor_plugin:check_taboo",
            arguments=("taboo",),
        ),
    ]
'''
SMALL: dict[str, Any] = {"max_model_len": 64, "num_gpu_blocks_override": 32, "max_num_seqs": 4}
WORDS = ByteVocabulary()


@pytest.fixture(scope="module", autouse=True)
def censor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A distribution with two processors and settings."""
    with installed(tmp_path_factory.mktemp("censor"), "censor", "censor_plugin", SOURCE):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that answers three tokens with "see" and ends."""
    folder = tmp_path_factory.mktemp("model")
    return str(write_scripted_model(folder, WORDS.ids(b"see"), prompt_tokens=3))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with LLM(model, **SMALL) as engine:
        yield engine


def asked(llm: LLM, **extra: Any) -> Any:
    """The answer to three tokens."""
    params = SamplingParams(temperature=0.0, max_tokens=12, extra_args=extra)
    (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
    assert output.outputs[0].error is None, output.outputs[0].error
    return output.outputs[0]


def test_a_processor_can_hold_the_end_of_sequence_back(llm: LLM) -> None:
    assert len(asked(llm).token_ids) == 4, "three letters and the end"
    assert len(asked(llm, later=8).token_ids) > 8
    assert asked(llm, later=2).text == "see"


def test_settings_are_told_and_have_their_defaults(model: str) -> None:
    options: dict[str, Any] = {**SMALL, "logits_processors": ["later"]}
    with LLM(model, **options) as llm:
        assert asked(llm).text == "see", "the default, 3, changes nothing"
    with LLM(model, plugin_config={"censor": {"least": 9, "word": "x"}}, **options) as llm:
        assert len(asked(llm).token_ids) > 9
        with pytest.raises(RequestError, match="x cannot be taboo"):
            asked(llm, taboo=["axe"])


def test_a_processor_and_its_check_can_read_words(llm: LLM) -> None:
    assert "s" not in asked(llm, taboo=["s"]).text
    with pytest.raises(RequestError, match="e cannot be taboo"):
        asked(llm, taboo=["tree"])


def test_an_engine_without_a_tokeniser_says_so_to_the_check(model: str) -> None:
    silent = LLM(model, skip_tokenizer_init=True, **SMALL)
    with silent as llm, pytest.raises(RequestError, match="taboo needs a tokeniser"):
        asked(llm, taboo=["s"])


def test_stop_tokens_are_among_the_ends_of_a_row(llm: LLM) -> None:
    stop = WORDS.byte_id(ord("s"))
    params = SamplingParams(
        temperature=0.0, max_tokens=6, stop_token_ids=[stop], extra_args={"later": 2}
    )
    (output,) = llm.generate([5, 6, 7], params, use_tqdm=False)
    assert stop not in output.outputs[0].token_ids[:2]
    (plain,) = llm.generate(
        [5, 6, 7], SamplingParams(temperature=0.0, stop_token_ids=[stop]), use_tqdm=False
    )
    assert plain.outputs[0].token_ids == [stop]


def test_the_contract_imports_no_torch() -> None:
    code = "import sys, pegboard.api.logits; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.accept
def test_each_of_several_ranks_knows_the_same(tmp_path: Path) -> None:
    tiny = str(write_tiny_model(tmp_path / "tiny", seed=5))
    params = SamplingParams(
        temperature=1.0,
        seed=3,
        max_tokens=40,
        ignore_eos=True,
        extra_args={"taboo": [chr(code) for code in range(97, 127) if chr(code) != "e"]},
    )
    found = []
    for ranks in (1, 2):
        with LLM(tiny, platform="cpu", tensor_parallel_size=ranks, dtype="float32", **SMALL) as llm:
            (output,) = llm.generate("abc", params, use_tqdm=False)
        assert output.outputs[0].error is None, output.outputs[0].error
        found.append(set(output.outputs[0].token_ids))
    refused = {WORDS.byte_id(code) for code in range(97, 127) if chr(code) != "e"}
    assert not refused & found[0] and not refused & found[1]
