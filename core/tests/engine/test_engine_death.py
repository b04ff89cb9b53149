"""The engine's process and its parent: births, deaths and orderly ends."""

from __future__ import annotations

import asyncio
import glob
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pegboard import AsyncLLM, SamplingParams
from pegboard.errors import (
    ConfigError,
    EngineDeadError,
    MissingPluginError,
    PegboardError,
    RequestError,
    ResourceError,
)

FAIL, HANG, EXIT = 66, 77, 88
LONG = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)

PARENT = """
import asyncio, sys
sys.path[:] = {path!r}
from pegboard import AsyncLLM, SamplingParams
llm = AsyncLLM(**{options!r})
async def main():
    params = SamplingParams(max_tokens=4000, temperature=0.0, ignore_eos=True)
    async for output in llm.generate({{"prompt_token_ids": [{first}, 5]}}, params):
        print(llm.client.pid, "torch" in sys.modules, flush=True)
print(llm.client.pid, "torch" in sys.modules, flush=True)
asyncio.run(main())
"""


def prompt(first: int = 5) -> dict[str, Any]:
    return {"prompt_token_ids": [first, 5, 6]}


def runs(pid: int) -> bool:
    """Whether a process is there, other than as a zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What engines that are started from here keep in the folder of temporary files, which is the
    test's own: others run engines too."""
    with tempfile.TemporaryDirectory() as own:  # a short path, for sockets
        monkeypatch.setenv("TMPDIR", own)
        monkeypatch.setattr(tempfile, "tempdir", own)
        yield lambda: glob.glob(os.path.join(own, "pegboard-engine-*"))


async def read_all(llm: AsyncLLM, first: int = 5, **options: Any) -> Any:
    return [output async for output in llm.generate(prompt(first), LONG, **options)][-1]


async def running(llm: AsyncLLM, count: int) -> list[asyncio.Task[Any]]:
    """Tasks that read long answers, once all have begun."""
    tasks = [asyncio.ensure_future(read_all(llm)) for _ in range(count)]
    while llm.latest_stats.running < count:
        await asyncio.sleep(0.01)
    return tasks


async def errors_of(tasks: list[asyncio.Task[Any]], seconds: float) -> list[Any]:
    done, late = await asyncio.wait(tasks, timeout=seconds)
    assert not late, f"{len(late)} readers wait for ever"
    return [task.exception() for task in done]


def test_a_killed_engine_fails_every_stream_at_once_and_leaves_nothing(
    moody: dict[str, Any], folders: Callable[[], list[str]]
) -> None:
    llm = AsyncLLM(**moody)
    assert folders()

    async def main() -> None:
        tasks = await running(llm, 20)
        question = asyncio.ensure_future(llm.stats())
        os.kill(llm.client.pid, signal.SIGKILL)
        begin = time.monotonic()
        errors = await errors_of([*tasks, question], 2.0)
        assert time.monotonic() - begin < 2.0
        del errors[-1]  # the question may have been answered before
        assert all(isinstance(error, EngineDeadError) for error in errors)
        assert "was ended by signal SIGKILL" in str(errors[0])
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await llm.check_health()
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await read_all(llm)

    asyncio.run(main())
    assert llm.errored
    assert llm.num_live_requests == 0
    assert llm.client.exit_code == -signal.SIGKILL
    llm.close()
    assert not runs(llm.client.pid)
    assert not folders()


def test_a_fault_in_a_step_fails_every_stream_with_its_reason(moody: dict[str, Any]) -> None:
    llm = AsyncLLM(**moody)

    async def main() -> None:
        tasks = await running(llm, 3)
        tasks.append(asyncio.ensure_future(read_all(llm, FAIL)))
        for error in await errors_of(tasks, 5.0):
            assert isinstance(error, EngineDeadError)
            assert "ZeroDivisionError: the device is on fire" in str(error)

    asyncio.run(main())
    assert wait_for(lambda: not runs(llm.client.pid))
    llm.close()
    assert llm.client.exit_code == 1


def test_a_hung_step_shows_and_can_be_closed(moody: dict[str, Any]) -> None:
    llm = AsyncLLM(**moody)
    assert llm.silent_for == 0.0

    async def main() -> None:
        hung = asyncio.ensure_future(read_all(llm, HANG))
        while llm.silent_for < 0.5:
            assert llm.num_live_requests <= 1
            await asyncio.sleep(0.05)
        facts = llm.client.what_runs()
        assert (facts["requests"], facts["without_token"]) == (1, 1) and facts["longest_prompt"] > 0
        llm.client.close(grace=0.2)
        hung.cancel()

    asyncio.run(main())
    assert llm.client.exit_code == -signal.SIGKILL
    assert not runs(llm.client.pid)
    llm.close()


@pytest.mark.accept
def test_ranks_go_with_a_killed_engine(tiny_path: str) -> None:
    options = {"dtype": "float32", "max_model_len": 4096, "num_gpu_blocks_override": 300}
    llm = AsyncLLM(tiny_path, tensor_parallel_size=2, **options)
    ranks = llm.client.ready.facts["rank_processes"]
    assert len(ranks) == 2
    assert all(map(runs, ranks))

    async def main() -> None:
        tasks = await running(llm, 1)
        os.kill(llm.client.pid, signal.SIGKILL)
        (error,) = await errors_of(tasks, 2.0)
        assert isinstance(error, EngineDeadError)

    asyncio.run(main())
    llm.close()
    assert wait_for(lambda: not any(map(runs, ranks)), 5.0)


@pytest.mark.parametrize("first", [5, HANG])
def test_a_killed_parent_leaves_no_engine_also_in_a_hung_step(
    moody: dict[str, Any], folders: Callable[[], list[str]], first: int
) -> None:
    source = PARENT.format(path=sys.path, options=moody, first=first)
    command = [sys.executable, "-I", "-c", source]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        try:
            pid, torch = parent.stdout.readline().split()
            if first == HANG:
                time.sleep(0.3)  # it hangs by now
            else:
                assert parent.stdout.readline().split() == [pid, "False"]
            assert torch == "False", "the front end needs no torch"
            assert runs(int(pid))
        finally:
            parent.kill()
    assert wait_for(lambda: not runs(int(pid)), 5.0), "the engine is an orphan"
    assert not folders()


@pytest.mark.parametrize(
    ("options", "kind", "reason"),
    [
        ({"seed": FAIL}, ResourceError, "the device is too small"),
        ({"seed": HANG}, PegboardError, "ZeroDivisionError: a slip"),
        ({"seed": EXIT}, EngineDeadError, "exit status 9 while the engine was built"),
        ({"scheduler_cls": "none-such"}, MissingPluginError, "none-such"),
        ({"num_gpu_blocks_override": 2}, ResourceError, "max_model_len"),
    ],
)
def test_what_building_raises_comes_through_by_its_class(
    moody: dict[str, Any],
    folders: Callable[[], list[str]],
    options: dict[str, Any],
    kind: type[Exception],
    reason: str,
) -> None:
    with pytest.raises(kind, match=reason) as caught:
        AsyncLLM(**{**moody, **options})
    assert type(caught.value) is kind
    assert not folders()


def test_settings_that_no_process_can_be_told_are_refused(
    moody: dict[str, Any], folders: Callable[[], list[str]]
) -> None:
    events = {"enable_kv_cache_events": False, "address": object()}
    with pytest.raises(ConfigError, match="plain values"):
        AsyncLLM(**moody, kv_events_config=events)
    assert not folders()


def test_signals_of_the_terminal_do_not_end_the_engine_and_a_grace_lets_requests_finish(
    moody: dict[str, Any],
) -> None:
    llm = AsyncLLM(**moody)
    short = SamplingParams(max_tokens=150, temperature=0.0, ignore_eos=True)

    async def main() -> None:
        async def read() -> Any:
            return [item async for item in llm.generate(prompt(), short)][-1]

        assert os.getpgid(llm.client.pid) != os.getpgid(0)
        task = asyncio.ensure_future(read())
        while not llm.latest_stats.running:
            await asyncio.sleep(0.01)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(llm.client.pid, number)
        late = asyncio.ensure_future(llm.shutdown(grace=10.0))
        await asyncio.sleep(0.05)
        with pytest.raises(EngineDeadError, match="closed"):
            await read_all(llm)
        last = await task
        assert last.outputs[0].finish_reason == "length"
        assert len(last.outputs[0].token_ids) == 150
        await late

    asyncio.run(main())
    assert llm.client.exit_code == 0
    assert not llm.errored


def test_without_a_grace_a_shutdown_ends_streams_with_what_there_is(moody: dict[str, Any]) -> None:
    llm = AsyncLLM(**moody)

    async def main() -> None:
        tasks = await running(llm, 5)
        await llm.shutdown()
        for task in tasks:
            last = await asyncio.wait_for(task, 2.0)
            assert last.finished
            assert last.outputs[0].finish_reason == "abort"
        await llm.shutdown()  # once more is harmless

    asyncio.run(main())
    assert llm.client.exit_code == 0
    with pytest.raises(RequestError, match="call="):
        llm.client.call("exit")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_is_refused_and_its_parent_goes_on(moody: dict[str, Any]) -> None:
    llm = AsyncLLM(**moody)
    child = os.fork()
    if child == 0:
        code = 2
        try:
            llm.close()  # does nothing there
            asyncio.run(read_all(llm))
            code = 1
        except EngineDeadError as error:
            code = 0 if "forked" in str(error) else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    async def main() -> None:
        output = await read_all(llm, deadline=0.2)
        assert output.outputs[0].stop_reason == "deadline"

    asyncio.run(main())
    llm.close()
