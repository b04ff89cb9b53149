"""`LLM` with a tiny model: prompts in, answers out, templates from where they are given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.config import sources
from pegboard.errors import CheckpointError, ConfigError, EngineDeadError, RequestError
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
        (b"abc", GREEDY, "bytes is neither"),
        (["a", b"abc"], GREEDY, "prompt 1: .*bytes is neither"),
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


def test_streaming_takes_one_set_of_parameters(llm: LLM) -> None:
    with pytest.raises(RequestError, match="must be SamplingParams, not list"):
        next(llm.stream("a", [GREEDY]))  # type: ignore[arg-type]


def test_a_strong_negative_bias_is_clamped_like_any_other(llm: LLM) -> None:
    (first,) = ids(llm, "abc")

    def biased(value: float) -> list[int]:
        params = SamplingParams(
            temperature=0.0, max_tokens=4, ignore_eos=True, logit_bias={first[0]: value}
        )
        return ids(llm, "abc", params)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert biased(-1e300) == biased(-100.0) != first


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (["x"], r"messages\[0\]='x'"),
        ([TALK, 5], r"messages\[1\]=5"),
        ([[]], "messages="),
        (b"hi", "messages="),
        ([TALK[0], 3], r"messages\[1\]=3"),
    ],
)
def test_a_conversation_that_is_none_is_refused_by_name(llm: LLM, messages: Any, said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert caught.value.field == "messages"


@pytest.mark.parametrize(
    "options",
    [
        {"chat_template": ""},
        {"chat_template": 5},
        {"chat_template_kwargs": "x"},
        {"add_generation_prompt": "no"},
        {"continue_final_message": 1, "add_generation_prompt": False},
    ],
)
def test_a_chat_option_of_a_wrong_type_is_refused_by_name(
    llm: LLM, options: dict[str, Any]
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.chat(TALK, GREEDY, use_tqdm=False, **options)
    assert caught.value.field == next(iter(options))
    assert f"{caught.value.field}=" in str(caught.value)


def test_a_bad_template_is_found_before_weights_are_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pegboard.engine.build.make_executor", None)  # would load the weights
    for given in ("{% for x %}", "chatml", str(model)):
        with pytest.raises(ConfigError, match="template"):
            LLM(str(model), chat_template=given, **SMALL)


@pytest.mark.parametrize("name", [None, 1, True, "", b"model", ["model"]])
def test_a_model_that_is_no_name_is_refused_without_looking_for_it(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_fetch", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ConfigError, match=r"model=.*string"):
        LLM(name)


def test_a_path_object_is_a_model_too(model: Path) -> None:
    with LLM(model, **SMALL) as llm:
        assert llm.config.model == str(model)


@pytest.mark.parametrize("broken", ["{", "[]", '{"model": 5}', "{}"])
def test_a_broken_tokeniser_is_an_error_and_a_missing_one_is_not(
    broken: str, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "model")
    (folder / "tokenizer.json").write_text(broken)
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        LLM(str(folder), **SMALL)
    (folder / "tokenizer.json").unlink()
    with LLM(str(folder), **SMALL) as llm:
        assert len(ids(llm, [5, 6])[0]) == 4
        with pytest.raises(RequestError, match=r"no tokenizer\.json"):
            ids(llm, "text")


def test_chat_renders_the_models_template(llm: LLM) -> None:
    (output,) = llm.chat(TALK, GREEDY, use_tqdm=False)
    assert output.prompt == "<user>hi\n<assistant>"
    rendered = llm.apply_chat_template(TALK)
    for given in (rendered, [rendered]):
        (again,) = llm.generate(given, GREEDY, use_tqdm=False)
        assert again.outputs[0].token_ids == output.outputs[0].token_ids
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
    params = SamplingParams(top_k=most, max_tokens=None, ignore_eos=True, seed=2**63 - 1)
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


def test_a_closed_engine_forgets_no_cache(model: Path) -> None:
    llm = LLM(str(model), max_model_len=64, num_gpu_blocks_override=16)
    assert llm.reset_prefix_cache()
    llm.close()
    with pytest.raises(EngineDeadError, match="closed"):
        llm.reset_prefix_cache()


def test_token_ids_of_another_library_are_one_prompt(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    plain, scalars = (
        llm.generate(prompt, params, use_tqdm=False)
        for prompt in ([5, 6], [torch.tensor(5), torch.tensor(6)])
    )
    assert len(scalars) == 1
    assert scalars[0].outputs[0].token_ids == plain[0].outputs[0].token_ids
