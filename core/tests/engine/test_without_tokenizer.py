"""``skip_tokenizer_init``: an engine of token ids, which never looks at the tokeniser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.errors import CheckpointError, RequestError
from pegboard.testing.checkpoints import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=2)
SMALL = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 32, "max_num_seqs": 4}
IDS = [70, 71, 72]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture(scope="module")
def bare(model: Path) -> Iterator[LLM]:
    with LLM(model, skip_tokenizer_init=True, **SMALL) as engine:
        yield engine


def test_ids_go_in_and_the_same_ids_come_out_without_text(model: Path, bare: LLM) -> None:
    (answer,) = bare.generate(IDS, GREEDY, use_tqdm=False)
    with LLM(model, **SMALL) as usual:
        (expected,) = usual.generate(IDS, GREEDY, use_tqdm=False)
    assert answer.outputs[0].token_ids == expected.outputs[0].token_ids
    assert expected.outputs[0].text
    assert answer.outputs[0].text == ""
    entries = [entry for step in answer.outputs[0].logprobs or [] for entry in step.values()]
    assert entries and all(entry.decoded_token is None for entry in entries)


def test_a_broken_tokeniser_is_never_read(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "broken", seed=5)
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError):
        LLM(folder, **SMALL)
    with LLM(folder, skip_tokenizer_init=True, **SMALL) as llm:
        assert len(llm.generate(IDS, GREEDY, use_tqdm=False)[0].outputs[0].token_ids) == 6


@pytest.mark.parametrize("prompt", ["abc", {"prompt": "abc"}, [IDS, "abc"]])
def test_text_is_refused_with_the_setting_that_forbids_it(bare: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match=r"skip_tokenizer_init=True.*give token ids") as caught:
        bare.generate(prompt, GREEDY, use_tqdm=False)
    assert caught.value.field == "prompt"


def test_a_chat_is_refused(bare: LLM) -> None:
    with pytest.raises(RequestError, match="skip_tokenizer_init=True"):
        bare.chat([{"role": "user", "content": "hi"}], GREEDY, use_tqdm=False)


@pytest.mark.parametrize("stop", ["x", ["x", "y"]])
def test_stop_strings_are_refused_by_name(bare: LLM, stop: Any) -> None:
    params = SamplingParams(stop=stop)
    with pytest.raises(RequestError, match=r"stop=.*skip_tokenizer_init=True") as caught:
        bare.generate(IDS, params, use_tqdm=False)
    assert caught.value.field == "stop"
    with pytest.raises(RequestError, match="skip_tokenizer_init"):
        next(bare.stream(IDS, params))


def test_stop_ids_work(bare: LLM) -> None:
    (free,) = bare.generate(IDS, GREEDY, use_tqdm=False)
    third = free.outputs[0].token_ids[2]
    params = SamplingParams(temperature=0.0, max_tokens=6, stop_token_ids=[third])
    (answer,) = bare.generate(IDS, params, use_tqdm=False)
    assert answer.outputs[0].stop_reason == third
    assert answer.outputs[0].token_ids == free.outputs[0].token_ids[:3]
