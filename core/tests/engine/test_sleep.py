"""An engine gives its memory back, takes it again, and answers as before."""

from __future__ import annotations

import asyncio
import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest
import torch

from pegboard import LLM, AsyncLLM, SamplingParams
from pegboard.errors import RequestError, ResourceError, UnsupportedError

SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 256,
    "num_gpu_blocks_override": 512,
    "max_num_seqs": 8,
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPT = list(range(5, 45))
LONG = SamplingParams(temperature=0.0, max_tokens=3000, ignore_eos=True)
MIB = 1 << 20


@pytest.fixture
def make(tiny_path: str) -> Iterator[Callable[..., LLM]]:
    made: list[LLM] = []

    def build(**options: Any) -> LLM:
        made.append(LLM(tiny_path, **{**SMALL, **options}))
        return made[-1]

    yield build
    for llm in made:
        llm.close()


def answer(llm: LLM, prompt: list[int] = PROMPT) -> list[int]:
    (output,) = llm.generate([prompt], GREEDY, use_tqdm=False)
    return output.outputs[0].token_ids


def parts(llm: LLM) -> Any:
    """The executor, which holds model and runner."""
    return llm.engine.core.executor


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("async_scheduling", [None, False])
def test_after_sleep_it_answers_as_before(
    make: Callable[..., LLM], level: int, async_scheduling: bool | None
) -> None:
    llm = make(async_scheduling=async_scheduling)
    before = answer(llm)
    model = weakref.ref(parts(llm)._model)
    cache = weakref.ref(next(iter(parts(llm)._runner.storage.values())))
    for _ in range(2):
        llm.sleep(level)
        assert llm.is_sleeping()
        assert cache() is None
        assert (model() is None) == (level == 2)
        with pytest.raises(RequestError, match=r"sleeps .weights and kv_cache.; wake it up"):
            answer(llm)
        llm.wake_up()
        assert not llm.is_sleeping()
        assert answer(llm) == before
        assert answer(llm, PROMPT[::-1]) != before


def test_the_memory_of_the_cache_goes_back_to_the_system(make: Callable[..., LLM]) -> None:
    llm = make(num_gpu_blocks_override=None, kv_cache_memory_bytes=200 * MIB)
    process = psutil.Process(os.getpid())
    for tensors in parts(llm)._runner.storage.values():
        tensors.data.fill_(0)  # a CPU's page is there when it is written
    full = process.memory_info().rss
    del tensors
    llm.sleep()
    assert full - process.memory_info().rss > 180 * MIB
    llm.wake_up()
    assert answer(llm)


def test_the_prefix_cache_is_forgotten(make: Callable[..., LLM]) -> None:
    llm = make()
    answer(llm)
    (hit,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert hit.num_cached_tokens == 32
    llm.sleep()
    llm.wake_up()
    (miss,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert miss.num_cached_tokens == 0
    assert miss.outputs[0].token_ids == hit.outputs[0].token_ids
    llm.engine.core.scheduler.check()


@pytest.mark.parametrize("first", ["weights", "kv_cache"])
def test_parts_wake_up_one_by_one(make: Callable[..., LLM], first: str) -> None:
    llm = make()
    before = answer(llm)
    llm.sleep(2)
    llm.wake_up([first])
    assert llm.is_sleeping() and parts(llm)._runner is None
    assert (parts(llm)._model is not None) == (first == "weights")
    with pytest.raises(RequestError, match="sleeps"):
        answer(llm)
    llm.wake_up([first])
    assert llm.is_sleeping(), "twice the same part is not both"
    llm.wake_up([{"weights": "kv_cache", "kv_cache": "weights"}[first]])
    assert not llm.is_sleeping()
    assert answer(llm) == before


def test_sleep_gets_deeper_and_never_lighter(make: Callable[..., LLM]) -> None:
    llm = make()
    before = answer(llm)
    llm.wake_up()  # nothing sleeps
    for level, stands in ((1, 1), (2, 2), (1, 2)):
        llm.sleep(level)
        assert llm.engine.stats().sleep_level == stands
    assert parts(llm)._model is None
    llm.wake_up(["weights"])
    llm.sleep(2)
    assert parts(llm)._model is None
    llm.wake_up()
    assert llm.engine.stats().sleep_level == 0
    assert answer(llm) == before


def test_with_requests_it_stays_awake(make: Callable[..., LLM]) -> None:
    llm = make()
    before = answer(llm)
    llm.engine.add_request("one", PROMPT, GREEDY)
    llm.engine.step()
    with pytest.raises(RequestError, match="1 requests are not over"):
        llm.sleep()
    assert not llm.is_sleeping()
    while llm.engine.has_unfinished_requests():
        last = llm.engine.step()
    assert last[0].outputs[0].token_ids == before


@pytest.mark.parametrize("level", [0, 3, True, "1", None])
def test_other_levels_are_refused(make: Callable[..., LLM], level: Any) -> None:
    with pytest.raises(RequestError, match=r"level=.* is not allowed: 1 .* or 2"):
        make().sleep(level)


@pytest.mark.parametrize("tags", [[], "weights", ["scheduling"], ["weights", 1]])
def test_other_tags_are_refused(make: Callable[..., LLM], tags: Any) -> None:
    with pytest.raises(RequestError, match=r"tags=.* is not allowed"):
        make().wake_up(tags)


def test_without_memory_it_sleeps_on_and_may_be_woken_again(
    make: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make()
    before = answer(llm)
    llm.sleep(2)

    def full(*_: Any) -> None:
        raise ResourceError("there is none")

    with monkeypatch.context() as patch:
        patch.setattr(parts(llm), "warm_up", full)
        with pytest.raises(ResourceError):
            llm.wake_up()
    assert llm.is_sleeping() and parts(llm)._runner is None
    with pytest.raises(RequestError, match=r"sleeps .kv_cache.;"):
        answer(llm)
    llm.wake_up()
    assert answer(llm) == before


def test_weights_are_read_from_the_checkpoint_again(
    tiny_path: str, tmp_path: Path, make: Callable[..., LLM]
) -> None:
    copy = tmp_path / "model"
    shutil.copytree(tiny_path, copy)
    with LLM(str(copy), **SMALL) as llm:
        before = answer(llm)
        llm.sleep(2)
        for file in copy.glob("*.safetensors"):
            file.unlink()
        with pytest.raises(Exception, match="safetensors"):
            llm.wake_up()
        assert llm.is_sleeping()
        for file in Path(tiny_path).glob("*.safetensors"):
            shutil.copy(file, copy)
        llm.wake_up()
        assert answer(llm) == before


def test_platforms_with_memory_of_their_own_are_refused_by_name(make: Callable[..., LLM]) -> None:
    llm = make()
    executor = parts(llm)
    executor._opened = attrs.evolve(executor._opened, device=torch.device("meta"))
    with pytest.raises(UnsupportedError, match=r"cannot sleep: platform '.*' keeps memory of its"):
        llm.sleep()
    assert not llm.is_sleeping()


def test_executors_without_it_are_refused_by_name(moody: dict[str, Any]) -> None:
    with LLM(**moody) as llm, pytest.raises(UnsupportedError, match="Moody cannot give memory"):
        llm.sleep()


# In a process of its own


@pytest.fixture(scope="module")
def served(tiny_path: str) -> Iterator[AsyncLLM]:
    llm = AsyncLLM(tiny_path, **{**SMALL, "max_model_len": 4096})
    yield llm
    llm.close()


async def last(llm: AsyncLLM, params: SamplingParams = GREEDY, name: str | None = None) -> Any:
    async for output in llm.generate(PROMPT, params, name):
        found = output
    return found


async def begun(llm: AsyncLLM, task: asyncio.Task[Any]) -> None:
    while not llm.latest_stats.running and not task.done():
        await asyncio.sleep(0.01)


def test_a_server_ends_what_runs_and_holds_back_what_comes(served: AsyncLLM) -> None:
    async def work() -> None:
        expected = (await last(served)).outputs[0].token_ids
        running = asyncio.create_task(last(served, LONG))
        await begun(served, running)
        await served.sleep(2)
        assert (await running).outputs[0].finish_reason == "abort"
        assert await served.is_sleeping() and not served.is_paused
        assert served.latest_stats.sleep_level == 2
        held = asyncio.create_task(last(served))
        await served.wake_up(["weights"])
        await asyncio.sleep(0.1)
        assert not held.done() and await served.is_sleeping()
        await served.wake_up()
        assert (await held).outputs[0].token_ids == expected
        assert served.latest_stats.sleep_level == 0
        await asyncio.wrap_future(served.client.call("check"))

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_server_can_wait_for_what_runs(served: AsyncLLM) -> None:
    async def work() -> None:
        params = SamplingParams(temperature=0.0, max_tokens=1000, ignore_eos=True)
        running = asyncio.create_task(last(served, params))
        await begun(served, running)
        sleeping = asyncio.create_task(served.sleep(mode="wait"))
        while not served._requests._pauses:
            await asyncio.sleep(0)
        held = asyncio.create_task(last(served))
        assert (await running).outputs[0].finish_reason == "length"
        await sleeping
        assert await served.is_sleeping() and not held.done()
        served.pause()
        await served.wake_up()
        await asyncio.sleep(0.1)
        assert not held.done(), "a pause of its own goes on"
        served.resume()
        await held
        for refused in (served.sleep(mode="keep"), served.sleep(3), served.wake_up(["x"])):
            with pytest.raises(RequestError, match="is not allowed"):
                await refused

    asyncio.run(asyncio.wait_for(work(), 60))


def test_an_engine_that_cannot_sleep_ends_no_request(moody: dict[str, Any]) -> None:
    llm = AsyncLLM(**moody)

    async def work() -> None:
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        running = asyncio.create_task(last(llm, params))
        await begun(llm, running)
        with pytest.raises(UnsupportedError, match="Moody"):
            await llm.sleep()
        assert (await running).outputs[0].finish_reason == "length"
        assert (await last(llm, params)).finished

    try:
        asyncio.run(asyncio.wait_for(work(), 60))
    finally:
        llm.close()
