"""`AsyncLLM` answers as `LLM` does, many readers at a time, and forgets what nobody reads."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import pytest

from pegboard import LLM, AsyncLLM, SamplingParams
from pegboard.engine.outputs import RequestOutput
from pegboard.errors import RequestError, ResourceError

T = TypeVar("T")

SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "num_gpu_blocks_override": 512,
    "max_num_seqs": 64,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tiny_path: str) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(tiny_path, **SMALL)
    yield llm
    llm.close()
    assert llm.client.exit_code == 0


@pytest.fixture(scope="module")
def reference(tiny_path: str) -> Iterator[LLM]:
    with LLM(tiny_path, **SMALL) as llm:
        yield llm


@pytest.fixture(scope="module")
def null(moody: dict[str, Any]) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(**moody)
    yield llm
    llm.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    async def limited() -> T:
        return await asyncio.wait_for(work, 60)

    return asyncio.run(limited())


async def states(llm: AsyncLLM, prompt: Any, params: Any = GREEDY, **more: Any) -> list[Any]:
    return [output async for output in llm.generate(prompt, params, **more)]


async def all_is_back(llm: AsyncLLM) -> None:
    """Nothing of any request is left, here or there."""
    while True:
        stats = await llm.stats()
        if not (stats.running or stats.waiting):
            break
        await asyncio.sleep(0.01)
    await asyncio.wrap_future(llm.client.call("settle"))
    await asyncio.wrap_future(llm.client.call("check"))
    stats = await llm.stats()
    assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0)
    assert llm.num_live_requests == 0
    outputs = llm._requests._outputs
    assert not outputs.live()
    assert not outputs._owner


def plain(output: RequestOutput) -> list[Any]:
    """All that does not depend on time."""
    parts = [(o.index, o.text, o.token_ids, o.finish_reason, o.stop_reason) for o in output.outputs]
    return [output.prompt, output.prompt_token_ids, parts]


def rounded(logprobs: Any) -> Any:
    if logprobs is None:
        return None
    return [
        entry and {k: (v.rank, v.decoded_token, round(v.logprob, 3)) for k, v in entry.items()}
        for entry in logprobs
    ]


@pytest.mark.parametrize(
    "params",
    [
        GREEDY,
        SamplingParams(seed=3, max_tokens=20),
        SamplingParams(seed=3, n=3, max_tokens=8, logit_bias={90: 5.0}),
        SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=2),
        SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=1),
        SamplingParams(seed=4, max_tokens=40, stop=["a", "0"], min_tokens=3),
        SamplingParams(temperature=0.0, max_tokens=0, prompt_logprobs=0),
    ],
)
def test_answers_are_those_of_the_engine_in_this_process(
    engine: AsyncLLM, reference: LLM, params: SamplingParams
) -> None:
    text = "a prompt of thirty characters."
    (wanted,) = reference.generate(text, params, use_tqdm=False)
    found = run(states(engine, text, params))[-1]
    assert found.finished
    assert plain(found) == plain(wanted)
    assert rounded(found.prompt_logprobs) == rounded(wanted.prompt_logprobs)
    for mine, theirs in zip(found.outputs, wanted.outputs, strict=True):
        assert rounded(mine.logprobs) == rounded(theirs.logprobs)
        if theirs.cumulative_logprob is not None:
            assert math.isclose(mine.cumulative_logprob, theirs.cumulative_logprob, abs_tol=1e-3)


def test_a_chat_is_rendered_and_answered_as_by_the_engine_in_this_process(
    engine: AsyncLLM, reference: LLM
) -> None:
    messages = [{"role": "user", "content": "x" * 100}]

    async def main() -> list[Any]:
        return [output async for output in engine.chat(messages, GREEDY)]

    (wanted,) = reference.chat(messages, GREEDY, use_tqdm=False)
    assert plain(run(main())[-1]) == plain(wanted)


def test_each_state_is_a_copy_that_grows_from_one_to_the_next(engine: AsyncLLM) -> None:
    found = run(states(engine, "abc", SamplingParams(temperature=0.0, max_tokens=30)))
    lengths = [len(state.outputs[0].token_ids) for state in found]
    assert lengths == sorted(set(lengths))
    assert [state.finished for state in found] == [False] * (len(found) - 1) + [True]
    last = found[-1].outputs[0]
    for state in found:
        assert last.text.startswith(state.outputs[0].text)
        assert last.token_ids[: len(state.outputs[0].token_ids)] == state.outputs[0].token_ids
    assert found[-1].metrics.first_token_ts is not None


def test_a_slow_reader_finds_the_latest_state(null: AsyncLLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)

    async def main() -> int:
        count = 0
        async for _ in null.generate("abc", params):
            count += 1
            await asyncio.sleep(0.1)
        return count

    assert 2 <= run(main()) < 50


def test_two_hundred_streams_with_cancellations_leave_nothing_behind(engine: AsyncLLM) -> None:
    draws = random.Random(1)
    counts = {"cancelled": 0, "finished": 0, "aborted": 0, "left": 0}

    async def one(number: int) -> None:
        params = SamplingParams(seed=number, max_tokens=draws.randrange(1, 40), ignore_eos=True)
        fate, limit = draws.choice(["end", "end", "leave", "abort"]), draws.randrange(1, 20)
        name = f"r{number}"
        seen = 0
        async for output in engine.generate("prompt" * draws.randrange(1, 12), params, name):
            seen += 1
            if output.finished:
                counts["finished"] += output.outputs[0].finish_reason == "length"
                counts["aborted"] += output.outputs[0].finish_reason == "abort"
            elif seen >= limit and fate == "leave":
                counts["left"] += 1
                break
            elif seen >= limit and fate == "abort":
                await engine.abort(name)

    async def main() -> None:
        tasks = [asyncio.ensure_future(one(number)) for number in range(200)]
        while counts["finished"] < 60:
            await asyncio.sleep(0.005)
        for task in draws.sample(tasks, 60):
            counts["cancelled"] += task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert not [r for r in results if r and not isinstance(r, asyncio.CancelledError)]
        await all_is_back(engine)

    run(main())
    assert min(counts.values()) > 0, counts


def test_several_event_loops_share_one_engine(engine: AsyncLLM) -> None:
    answers: list[Any] = []

    async def main() -> None:
        found = await asyncio.gather(*(states(engine, "shared", GREEDY) for _ in range(5)))
        answers.extend(plain(states[-1]) for states in found)

    threads = [threading.Thread(target=lambda: run(main())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(answers) == 15
    assert all(answer == answers[0] for answer in answers)


def test_a_loop_that_is_closed_with_requests_in_it_does_not_keep_them(null: AsyncLLM) -> None:
    loop = asyncio.new_event_loop()
    params = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
    stream = loop.run_until_complete(null.add("abc", params))
    assert null.num_live_requests == 1
    loop.close()
    deadline = time.monotonic() + 5
    while null.num_live_requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert null.num_live_requests == 0
    run(all_is_back(null))
    del stream


def test_a_request_past_its_deadline_ends_with_what_there_is(null: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)

    async def main() -> None:
        begin = time.monotonic()
        last = (await states(null, "abc", params, deadline=0.3))[-1]
        assert 0.25 < time.monotonic() - begin < 2.0
        assert last.finished
        assert (last.outputs[0].finish_reason, last.outputs[0].stop_reason) == ("abort", "deadline")
        assert last.outputs[0].token_ids
        quick = (await states(null, "abc", GREEDY, deadline=0.5))[-1]
        assert quick.outputs[0].finish_reason == "length"
        await all_is_back(null)

    run(main())


@pytest.mark.parametrize("deadline", [0, -1.0, math.inf, math.nan, True, "1"])
def test_a_deadline_is_a_time_to_come(null: AsyncLLM, deadline: Any) -> None:
    with pytest.raises(RequestError, match="deadline=") as caught:
        run(states(null, "abc", GREEDY, deadline=deadline))
    assert caught.value.field == "deadline"


def test_requests_of_a_pause_run_when_it_is_over_and_may_be_dropped(null: AsyncLLM) -> None:
    async def main() -> None:
        null.pause()
        assert null.is_paused
        held = [asyncio.ensure_future(states(null, "abc", GREEDY)) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert null.num_live_requests == 3
        assert (await null.stats()).running == 0
        held[1].cancel()
        await asyncio.sleep(0)
        null.resume()
        done = await asyncio.gather(*held, return_exceptions=True)
        assert isinstance(done[1], asyncio.CancelledError)
        for answer in (done[0], done[2]):
            assert answer[-1].outputs[0].finish_reason == "length"
        await all_is_back(null)

    run(main())


def test_an_id_in_use_is_refused_and_its_owner_unharmed(null: AsyncLLM) -> None:
    async def main() -> None:
        first = await null.add("abc", GREEDY, "mine")
        with pytest.raises(RequestError, match="in use"):
            await null.add("abc", GREEDY, "mine")
        last = [output async for output in first][-1]
        assert last.request_id == "mine"
        assert last.outputs[0].finish_reason == "length"
        again = await states(null, "abc", GREEDY, request_id="mine")
        assert again[-1].finished
        first.close()  # long over, and the name is another's by now

    run(main())


def test_bad_requests_are_refused_before_the_engine_hears_of_them(
    null: AsyncLLM,
) -> None:
    with pytest.raises(RequestError, match="outside 0 to"):
        run(states(null, {"prompt_token_ids": [10**6]}))
    with pytest.raises(RequestError, match="cannot be told"):
        run(states(null, {"prompt": "a", "kv_transfer_params": {"a": object()}}))
    with pytest.raises(RequestError, match="request_id="):
        run(states(null, "abc", GREEDY, request_id=5))
    run(all_is_back(null))


def test_statistics_and_the_cache_are_within_reach(engine: AsyncLLM) -> None:
    async def main() -> None:
        prompt = "the same beginning of two prompts, longer than a block"
        await states(engine, prompt)
        assert (await states(engine, prompt))[-1].num_cached_tokens > 0
        assert await engine.reset_prefix_cache()
        assert (await states(engine, prompt))[-1].num_cached_tokens == 0
        assert (await engine.stats()).cache.resets == 1
        assert (await engine.kv_event_stats()).published == 0
        await engine.check_health()

    run(main())
    assert engine.silent_for == 0.0
    assert not engine.errored
    used = [row for row in engine.plugins() if row["used"]]
    assert any("model:tiny" in row["used"] for row in used)
    assert any("executor:local" in row["used"] for row in used)
    for names in (["plugins"], ["run"]):
        engine.uses("command", names)
    core = engine.plugins()[0]["used"]
    assert {"command:plugins", "command:run"} <= set(core)


def test_long_texts_are_tokenised_beside_the_event_loop(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []
    tokenise = type(engine._front.inputs).tokenise

    def watched(self: Any, prompt: Any) -> Any:
        threads.append(threading.current_thread())
        return tokenise(self, prompt)

    monkeypatch.setattr(type(engine._front.inputs), "tokenise", watched)
    run(states(engine, "short"))
    with pytest.raises(RequestError, match="context"):
        run(states(engine, "x" * 3000))
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()


def test_requests_that_can_never_fit_are_refused_by_their_class(moody: dict[str, Any]) -> None:
    options = {"enable_chunked_prefill": False, "max_num_batched_tokens": 64, "max_num_seqs": 8}
    llm = AsyncLLM(**{**moody, **options})
    try:
        with pytest.raises((RequestError, ResourceError), match="max_num_batched_tokens"):
            run(states(llm, {"prompt_token_ids": [5] * 80}))
        assert run(states(llm, {"prompt_token_ids": [5] * 8}))[-1].finished
        run(all_is_back(llm))
    finally:
        llm.close()


def test_who_asks_and_does_not_wait_does_no_harm(null: AsyncLLM) -> None:
    async def impatient() -> None:
        for _ in range(5):
            asked = asyncio.ensure_future(null.stats())
            await asyncio.sleep(0)
            asked.cancel()
        assert (await null.stats()).running == 0
        await null.check_health()

    run(impatient())
