"""Requests that cannot be served: refused with the field and the limit, and the next one works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.errors import ConfigError, PegboardError, RequestError, ResourceError
from pegboard.testing.checkpoints import write_tiny_model

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = 64
VOCAB = 259
GREEDY = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)


@pytest.fixture(scope="module")
def llm(folder: Path, one_thread: None) -> Iterator[LLM]:
    options = {"max_model_len": CONTEXT, "max_num_seqs": 4, "num_gpu_blocks_override": 12}
    with LLM(str(folder), dtype="float32", **options) as engine:
        yield engine


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[int]:
    return ordinary(llm)


def ordinary(llm: LLM) -> list[int]:
    (output,) = llm.generate([5, 6, 7], SamplingParams(**GREEDY), use_tqdm=False)
    return list(output.outputs[0].token_ids)


@pytest.fixture(autouse=True)
def next_request_works(llm: LLM, expected: list[int]) -> Iterator[None]:
    """After each test here: an ordinary request gets its tokens, and nothing is left behind."""
    yield
    assert ordinary(llm) == expected
    assert not llm.engine.has_unfinished_requests()
    llm.engine.core.scheduler.check()


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "empty"),
        ([], None),
        ([[]], "empty"),
        (["a", ""], "prompt 1"),
        ([5] * (CONTEXT + 1), f"{CONTEXT + 1} tokens"),
        ("word " * CONTEXT, str(CONTEXT)),
        ([VOCAB], f"0 to {VOCAB - 1}"),
        ([5, -1], f"0 to {VOCAB - 1}"),
        ([[5, 6], [7, 10**12]], "prompt 1"),
        ([5, 2.5], "2.5"),
        ([True, 5], "True"),
        (7, "int"),
        ([7, None], "None"),
        ({"prompt_ids": [5]}, "prompt_ids"),
        ({"prompt": 5}, "prompt"),
        ({"prompt_token_ids": "abc"}, "str"),
        ({"prompt": "a", "cache_salt": ""}, "cache_salt"),
        (None, "NoneType"),
    ],
)
def test_o11_a_prompt_that_is_not_one_is_refused(llm: LLM, prompt: Any, said: str | None) -> None:
    if said is None:  # no prompts: no answers
        assert llm.generate(prompt, SamplingParams(**GREEDY), use_tqdm=False) == []
        return
    with pytest.raises(RequestError) as caught:
        llm.generate(prompt, SamplingParams(**GREEDY), use_tqdm=False)
    assert said in str(caught.value)
    assert caught.value.field in {"prompt", "prompts", "cache_salt"}


@pytest.mark.parametrize(("messages", "field"), [([], "messages"), ("hi", "messages")])
def test_o11_a_conversation_that_is_not_one_is_refused(llm: LLM, messages: Any, field: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.chat(messages, use_tqdm=False)
    assert caught.value.field == field


def test_o11_an_empty_prompt_disturbs_no_request_in_flight(llm: LLM, expected: list[int]) -> None:
    running = llm.stream([5, 6, 7], SamplingParams(**GREEDY))
    next(running)
    with pytest.raises(RequestError):
        llm.engine.add_request("another", "", SamplingParams())
    assert [output.outputs[0].token_ids for output in running][-1] == expected


@pytest.mark.parametrize(("length", "tokens"), [(8, 57), (64, 1), (60, 5)])
def test_o12_an_overlong_wish_names_context_prompt_and_wish(
    llm: LLM, length: int, tokens: int
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([5] * length, SamplingParams(max_tokens=tokens), use_tqdm=False)
    for number in (CONTEXT, length, tokens):
        assert str(number) in str(caught.value)


def test_o12_the_last_place_of_the_context_can_be_filled(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)
    (output,) = llm.generate([5] * (CONTEXT - 1), params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == 1
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {VOCAB: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {"abc": 1.0}),
        ("logit_bias", [5]),
        ("stop_token_ids", [VOCAB]),
        ("stop_token_ids", ["5"]),
        ("allowed_token_ids", [VOCAB]),
        ("allowed_token_ids", []),
        ("max_tokens", 0),
        ("max_tokens", "8"),
        ("temperature", "hot"),
        ("temperature", float("nan")),
        ("n", 0),
        ("stop", ""),
        ("stop", ["", "x"]),
        ("logprobs", 21),
        ("seed", 2**63),
    ],
)
def test_o06_a_bad_parameter_is_refused_by_name(llm: LLM, field: str, value: Any) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([5, 6, 7], SamplingParams(**{field: value}), use_tqdm=False)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_o06_a_large_bias_is_clamped_as_documented(llm: LLM) -> None:
    def run(bias: float) -> list[int]:
        params = SamplingParams(**GREEDY, logit_bias={9: bias})
        return list(llm.generate([5, 6], params, use_tqdm=False)[0].outputs[0].token_ids)

    assert run(1000.0) == run(100.0) == [9] * 6


@pytest.mark.parametrize("params", ["greedy", 5, {"max_tokens": 3}, [None]])
def test_parameters_of_a_wrong_type_are_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="sampling_params"):
        llm.generate([5, 6, 7], params, use_tqdm=False)


def test_as_many_parameters_as_prompts_are_needed(llm: LLM) -> None:
    with pytest.raises(RequestError, match="2 entries for 3 prompts"):
        llm.generate([[5], [6], [7]], [SamplingParams()] * 2, use_tqdm=False)


def test_one_bad_request_of_a_batch_is_found_before_any_runs(llm: LLM) -> None:
    before = llm.engine.stats()
    with pytest.raises(RequestError):
        llm.generate([[5, 6], [7], [VOCAB]], SamplingParams(**GREEDY), use_tqdm=False)
    too_long = SamplingParams(max_tokens=CONTEXT)
    with pytest.raises(RequestError):
        llm.generate([[5, 6], [7]], [SamplingParams(**GREEDY), too_long], use_tqdm=False)
    assert llm.engine.stats().cache == before.cache


def test_a_pool_that_cannot_hold_the_context_is_refused_with_what_would(folder: Path) -> None:
    with pytest.raises(ResourceError) as caught:
        LLM(str(folder), max_model_len=CONTEXT, block_size=16, num_gpu_blocks_override=4)
    assert f"max_model_len={CONTEXT}" in str(caught.value)
    assert "at most 48" in str(caught.value)
    with LLM(
        str(folder), dtype="float32", max_model_len=48, block_size=16, num_gpu_blocks_override=4
    ) as small:
        (output,) = small.generate([5] * 42, SamplingParams(**GREEDY), use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 6
        with pytest.raises(RequestError, match="48"):
            small.generate([5] * 49, SamplingParams(**GREEDY), use_tqdm=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_model_len": 0}, "max_model_len=0"),
        ({"max_model_len": 5000}, "4096"),
        ({"block_size": 7}, "block_size=7"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"max_num_batched_tokens": 1, "max_num_seqs": 2}, "max_num_batched_tokens=1"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"seed": -1}, "seed=-1"),
        ({"max_modellen": 5}, "did you mean 'max_model_len'"),
        ({"enable_prefix_caching": "yes"}, "enable_prefix_caching='yes'"),
    ],
)
def test_a_bad_engine_setting_is_refused_by_name(
    folder: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LLM(str(folder), **options)
    assert said in str(caught.value)


def test_an_answer_that_is_given_up_frees_everything(llm: LLM) -> None:
    for _ in range(3):
        stream = llm.stream([5, 6, 7], SamplingParams(**GREEDY | {"max_tokens": 50}))
        next(stream)
        stream.close()
    assert llm.reset_prefix_cache(), "no block is in use"


def test_deliberate_errors_have_one_base_class(llm: LLM) -> None:
    with pytest.raises(PegboardError):
        llm.generate("", use_tqdm=False)
    with pytest.raises(ValueError):
        llm.generate("", use_tqdm=False)
