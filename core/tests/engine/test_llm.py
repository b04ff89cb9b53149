"""`LLM` with a tiny model: prompts in, answers out, templates from where they are given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.errors import ConfigError, EngineDeadError, RequestError
from pegboard.testing.checkpoints import write_tiny_model

GREEDY = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
SMALL = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 32, "max_num_seqs": 4}
TALK = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), **SMALL) as engine:
        yield engine


def ids(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[list[int]]:
    return [item.outputs[0].token_ids for item in llm.generate(prompts, params, use_tqdm=False)]


def test_results_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a", "bc", "def"]
    assert ids(llm, prompts) == [ids(llm, prompt)[0] for prompt in prompts]


def test_a_list_of_ids_is_one_prompt_and_a_list_of_lists_are_several(llm: LLM) -> None:
    assert len(ids(llm, [5, 6, 7])) == 1
    assert len(ids(llm, [[5, 6, 7], [8]])) == 2
    assert ids(llm, []) == []


def test_parameters_may_differ_by_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 3)]
    assert [len(answer) for answer in ids(llm, ["a", "b"], params)] == [1, 3]


@pytest.mark.parametrize(
    ("prompts", "params", "said"),
    [
        (["a", ""], GREEDY, "prompt 1: .*empty"),
        (["a", "b"], [GREEDY], "1 entries for 2 prompts"),
        ("a", {"temperature": 0}, "must be SamplingParams"),
        (5, GREEDY, "prompts is a int"),
        (["a", ["x"]], GREEDY, "prompt 1: .*not an integer"),
    ],
)
def test_a_bad_batch_is_refused_whole_before_any_of_it_runs(
    llm: LLM, prompts: Any, params: Any, said: str
) -> None:
    with pytest.raises(RequestError, match=said):
        llm.generate(prompts, params, use_tqdm=False)
    assert not llm.engine.has_unfinished_requests()
    assert len(ids(llm, "next")[0]) == 4


def test_streaming_ends_with_the_whole_answer_and_may_be_left_early(llm: LLM) -> None:
    *_, last = llm.stream("abc", GREEDY)
    assert last.finished and last.outputs[0].token_ids == ids(llm, "abc")[0]
    for _ in llm.stream("abc", GREEDY):
        break
    assert not llm.engine.has_unfinished_requests()


def test_chat_renders_the_models_template(llm: LLM) -> None:
    (output,) = llm.chat(TALK, GREEDY, use_tqdm=False)
    assert output.prompt == "<user>hi\n<assistant>"
    both = llm.chat([TALK, TALK], GREEDY, use_tqdm=False)
    assert [item.outputs[0].token_ids for item in both] == [output.outputs[0].token_ids] * 2


def test_a_template_may_come_from_a_file_or_a_string(model: Path, tmp_path: Path) -> None:
    source = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    file = tmp_path / "mine.jinja"
    file.write_text(source)
    for given in (source, str(file)):
        with LLM(str(model), chat_template=given, **SMALL) as llm:
            assert llm.apply_chat_template(TALK).text == "[hi]"


def test_a_request_cannot_read_a_file_as_its_template(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "secret.jinja"
    file.write_text("{{ 'secret' }}")
    with pytest.raises(RequestError, match="neither a template"):
        llm.chat(TALK, GREEDY, use_tqdm=False, chat_template=str(file))


def test_an_unknown_option_names_the_nearest_one(model: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'block_size'"):
        LLM(str(model), blocksize=16)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dtype", "int8"),
        ("block_size", 17),
        ("max_num_seqs", 0),
        ("gpu_memory_utilization", 1.5),
        ("enable_prefix_caching", "yes"),
        ("max_model_len", 1.5),
        ("seed", -1),
        ("watermark", 1.0),
        ("load_format", "pickle"),
        ("num_gpu_blocks_override", 1),
    ],
)
def test_a_bad_setting_is_refused_by_name(model: Path, option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{option}="):
        LLM(str(model), **{option: value})


def test_the_token_budget_must_reach_every_running_request(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens=4 .*at least max_num_seqs"):
        LLM(str(model), max_num_batched_tokens=4)


def test_a_priority_that_no_policy_looks_at_is_refused(llm: LLM) -> None:
    assert len(llm.generate("a", GREEDY, use_tqdm=False, priority=[0])) == 1
    with pytest.raises(RequestError, match="priority=1") as caught:
        llm.generate("a", GREEDY, use_tqdm=False, priority=[1])
    assert caught.value.field == "priority"


def test_the_largest_counts_that_are_allowed_leave_the_engine_working(llm: LLM) -> None:
    most = 2**31 - 1
    params = SamplingParams(top_k=most, min_tokens=most, max_tokens=None, seed=2**63 - 1)
    (output,) = llm.generate("ab", params, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"
    assert len(ids(llm, "next")[0]) == 4


def test_a_closed_engine_says_so(model: Path) -> None:
    llm = LLM(str(model), **SMALL)
    begun = llm.stream("abc", SamplingParams(max_tokens=50, ignore_eos=True))
    next(begun)
    llm.close()
    llm.close()
    for use in (lambda: list(begun), lambda: ids(llm, "a"), lambda: llm.chat(TALK, GREEDY)):
        with pytest.raises(EngineDeadError, match="closed"):
            use()
