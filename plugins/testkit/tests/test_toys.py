"""The toys that the testkit hangs on the board work like the real thing."""

from __future__ import annotations

from pathlib import Path

import pytest

from pegboard import LLM, SamplingParams
from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model

SMALL = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16, "max_num_seqs": 4}


def test_the_scripted_model_says_its_script_and_ends(tmp_path: Path) -> None:
    vocabulary = ByteVocabulary(pieces=(b"He", b"llo"))
    script = [vocabulary.piece_id(b"He"), vocabulary.piece_id(b"llo"), vocabulary.byte_id(33)]
    model = write_scripted_model(tmp_path, script, prompt_tokens=2, vocabulary=vocabulary)
    with LLM(str(model), **SMALL) as llm:
        (output,) = llm.generate("ab", SamplingParams(temperature=0.0), use_tqdm=False)
    assert output.outputs[0].text == "Hello!"
    assert output.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize("platform", ["null", "cpu"])
def test_the_tiny_model_gives_the_same_tokens_on_every_platform(
    tmp_path: Path, platform: str
) -> None:
    model = write_tiny_model(tmp_path, seed=7)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with LLM(str(model), platform=platform, **SMALL) as llm:
        (output,) = llm.generate([10, 20, 30], params, use_tqdm=False)
        assert llm.engine.core.executor.facts()["platform"] == platform
    assert output.outputs[0].token_ids == tokens_of_a_fresh_engine(model)


def tokens_of_a_fresh_engine(model: Path) -> list[int]:
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    with LLM(str(model), **SMALL) as llm:
        return llm.generate([10, 20, 30], params, use_tqdm=False)[0].outputs[0].token_ids


def test_the_null_platform_is_never_chosen_by_itself(tmp_path: Path) -> None:
    with LLM(str(write_tiny_model(tmp_path)), **SMALL) as llm:
        assert llm.engine.core.executor.facts()["platform"] != "null"
