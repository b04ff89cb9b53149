"""One engine, several callers: streams in turns, threads, own requests, forked children."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.engine.turns import Turns
from pegboard.errors import EngineDeadError, RequestError
from pegboard.testing.checkpoints import write_tiny_model

PROMPT = {"prompt_token_ids": [5] * 20}
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "num_gpu_blocks_override": 64,
    "max_num_seqs": 4,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture(scope="module")
def llm(model: Path) -> Iterator[LLM]:
    with LLM(str(model), **SMALL) as shared:
        yield shared
        assert not shared.engine.has_unfinished_requests(), "no test leaves a request behind"


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def generated(llm: LLM, tokens: int) -> list[int]:
    return llm.generate(PROMPT, greedy(tokens), use_tqdm=False)[0].outputs[0].token_ids


@pytest.mark.parametrize("own", [3, 20])
def test_a_batch_beside_a_request_of_the_callers_own_leaves_its_outputs_to_step(
    llm: LLM, own: int
) -> None:
    llm.engine.add_request("mine", PROMPT, greedy(own))
    answer = generated(llm, 10)
    assert len(answer) == 10
    told = []
    while llm.engine.has_unfinished_requests():
        told += llm.engine.step()
    assert {item.request_id for item in told} == {"mine"}
    assert told[-1].finished
    assert told[-1].outputs[0].token_ids[:10] == answer[:own]


def test_an_end_that_was_not_fetched_keeps_its_id_until_it_is(llm: LLM) -> None:
    llm.engine.add_request("mine", PROMPT, greedy(1))
    generated(llm, 5)
    with pytest.raises(RequestError, match="in use"):
        llm.engine.add_request("mine", PROMPT, greedy(1))
    llm.engine.abort_request("mine")
    assert not llm.engine.has_unfinished_requests()


def test_a_batch_beside_an_unfinished_stream_hurts_neither(llm: LLM) -> None:
    stream = llm.stream(PROMPT, greedy(4))
    next(stream)
    assert len(generated(llm, 10)) == 10
    *_, last = stream
    assert last.finished
    assert len(last.outputs[0].token_ids) == 4


def test_streams_read_in_turns_all_come_to_their_end(llm: LLM) -> None:
    long, short = llm.stream(PROMPT, greedy(12)), llm.stream(PROMPT, greedy(4))
    next(long)
    next(short)
    *_, last = long
    assert last.finished
    *_, last = short
    assert last.finished
    assert len(last.outputs[0].token_ids) == 4


def test_a_stream_whose_request_another_aborts_yields_that_end(llm: LLM) -> None:
    stream = llm.stream(PROMPT, greedy(50))
    name = next(stream).request_id
    llm.engine.abort_request(name)
    (last,) = stream
    assert last.finished
    assert last.outputs[0].finish_reason == "abort"


def test_a_batch_avoids_the_ids_that_live_requests_have(llm: LLM) -> None:
    serial = int(llm.generate(PROMPT, greedy(1), use_tqdm=False)[0].request_id)
    taken = str(serial + 1)
    llm.engine.add_request(taken, PROMPT, greedy(1))
    assert len(generated(llm, 2)) == 2
    llm.engine.abort_request(taken)


@pytest.mark.parametrize("name", [None, ["a"], "", 5, b"a"])
def test_an_id_that_is_no_text_is_refused_and_nothing_is_kept(llm: LLM, name: Any) -> None:
    with pytest.raises(RequestError, match="request_id=") as caught:
        llm.engine.add_request(name, PROMPT, greedy(3))
    assert caught.value.field == "request_id"
    assert not llm.engine.core.has_work()


@pytest.mark.parametrize("name", [None, 5, ["a", None], [["a"]], b"a"])
def test_what_is_no_id_cannot_be_aborted(llm: LLM, name: Any) -> None:
    with pytest.raises(RequestError, match="request_ids=") as caught:
        llm.engine.abort_request(name)
    assert caught.value.field == "request_ids"


@pytest.mark.parametrize("priority", [5, iter([0]), {0: 0}, "0", {0}])
def test_priorities_are_a_list(llm: LLM, priority: Any) -> None:
    with pytest.raises(RequestError, match="priority=") as caught:
        llm.generate(PROMPT, greedy(1), use_tqdm=False, priority=priority)
    assert caught.value.field == "priority"


def test_threads_share_one_model(llm: LLM) -> None:
    lengths = [5, 30, 17, 8, 21, 12]
    with ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda tokens: generated(llm, tokens), lengths))
    assert [len(answer) for answer in answers] == lengths
    longest = max(answers, key=len)
    assert all(answer == longest[: len(answer)] for answer in answers)


def test_closing_from_another_thread_ends_a_batch_with_a_clear_error(model: Path) -> None:
    llm = LLM(str(model), **SMALL)
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(generated, llm, 230)
        while not llm.engine.has_unfinished_requests():
            time.sleep(0.001)
        llm.close()
        with pytest.raises(EngineDeadError, match="this engine is closed"):
            batch.result(timeout=30)


def test_a_thread_that_comes_back_at_once_lets_a_waiting_one_in() -> None:
    turns, entered, rounds = Turns(), threading.Event(), 0

    def wait_and_enter() -> None:
        with turns:
            entered.set()

    with turns, turns:
        waiting = threading.Thread(target=wait_and_enter)
        waiting.start()
        time.sleep(0.1)  # it waits by now
    while not entered.is_set() and rounds < 1000:
        with turns:
            rounds += 1
    waiting.join(timeout=10)
    assert rounds <= 1


def exit_code_of_a_child(work: Callable[[], object]) -> int:
    """0 if `work` meets `EngineDeadError`, 1 if it returns, 2 for another error, -9 if it hangs."""
    child = os.fork()
    if child == 0:
        code = 2
        try:
            work()
            code = 1
        except EngineDeadError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    for _ in range(200):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(child, 9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_told_at_once_and_its_parent_goes_on(llm: LLM) -> None:
    answer = generated(llm, 5)
    stream = llm.stream(PROMPT, greedy(5))
    next(stream)
    assert exit_code_of_a_child(lambda: generated(llm, 5)) == 0
    assert exit_code_of_a_child(lambda: list(stream)) == 0
    assert exit_code_of_a_child(llm.reset_prefix_cache) == 0
    assert exit_code_of_a_child(llm.close) == 1, "there is nothing to close there"
    *_, last = stream
    assert last.outputs[0].token_ids == answer
