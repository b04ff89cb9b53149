"""Readers that are fed: states reach them where they arrive, one at a time and none out of turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from pegboard.api.params import Logprob
from pegboard.engine.outputs import CompletionOutput, Moment, RequestMetrics, RequestOutput
from pegboard.engine.streams import Post, Stream
from pegboard.errors import EngineDeadError


def request(*outputs: CompletionOutput, scores: Any = None) -> RequestOutput:
    return RequestOutput("r", None, [5], scores, list(outputs), False, RequestMetrics(0.0))


class Answer:
    """An answer that grows by a letter at a time."""

    def __init__(self) -> None:
        self.item = CompletionOutput(0)
        self.output = request(self.item)

    def grown(self, end: str | None = None) -> Moment:
        self.item.text += "abcdefgh"[len(self.item.text)]
        self.item.token_ids.append(len(self.item.text))
        self.item.num_shown += 1
        self.item.finish_reason = end
        self.output.finished = end is not None
        return self.output.moment()


class Reader:
    """Notes what it takes; is busy with the letters of `slow` until it may go on."""

    def __init__(self, slow: str = "") -> None:
        self.seen: list[str] = []
        self.slow = slow
        self.go_on = asyncio.Event()

    def take(self, state: Moment) -> Awaitable[None] | None:
        text = state.output().outputs[0].text
        self.seen.append(text)
        return self._wait() if text[-1] in self.slow else None

    async def _wait(self) -> None:
        await self.go_on.wait()


def run(main: Callable[[Stream], Coroutine[Any, Any, None]]) -> None:
    """In a loop with one stream, which nobody cancels."""

    async def limited() -> None:
        stream = Stream("r", Post(asyncio.get_running_loop()), lambda _: None)
        await asyncio.wait_for(main(stream), 10)

    asyncio.run(limited())


def test_a_state_is_taken_before_anything_else_runs() -> None:
    async def main(stream: Stream) -> None:
        answer, reader = Answer(), Reader()
        feeding = asyncio.ensure_future(stream.feed(reader.take))
        await asyncio.sleep(0)
        stream.put(answer.grown())  # the first finds the task waiting, too
        assert reader.seen == ["a"]
        stream.put(answer.grown())
        assert reader.seen == ["a", "ab"]
        stream.put(answer.grown("stop"))
        await feeding
        assert reader.seen == ["a", "ab", "abc"]

    run(main)


def test_states_that_were_there_before_are_taken_as_one() -> None:
    async def main(stream: Stream) -> None:
        answer, reader = Answer(), Reader()
        stream.put(answer.grown())
        stream.put(answer.grown())
        feeding = asyncio.ensure_future(stream.feed(reader.take))
        await asyncio.sleep(0)
        assert reader.seen == ["ab"]
        stream.put(answer.grown("length"))
        await feeding
        assert reader.seen == ["ab", "abc"]

    run(main)


@pytest.mark.parametrize("slow", ["a", "b"])
def test_one_that_is_busy_is_left_alone_and_finds_the_latest_state(slow: str) -> None:
    async def main(stream: Stream) -> None:
        answer, reader = Answer(), Reader(slow)
        feeding = asyncio.ensure_future(stream.feed(reader.take))
        await asyncio.sleep(0)
        while not reader.seen or reader.seen[-1][-1] != slow:
            stream.put(answer.grown())
        taken = list(reader.seen)
        for _ in range(3):
            stream.put(answer.grown())
            assert reader.seen == taken
            await asyncio.sleep(0)
        reader.go_on.set()
        while reader.seen == taken:
            await asyncio.sleep(0)
        assert reader.seen == [*taken, answer.item.text]
        stream.put(answer.grown("stop"))
        await feeding
        assert reader.seen[-1] == answer.item.text

    run(main)


def test_its_fault_is_raised_where_it_feeds_and_harms_no_other() -> None:
    async def main(stream: Stream) -> None:
        other, reader, answer = Stream("o", stream.post, lambda _: None), Reader(), Answer()

        def fails(_: Moment) -> None:
            raise OSError("no room")

        feeding = asyncio.ensure_future(stream.feed(fails))
        reading = asyncio.ensure_future(other.feed(reader.take))
        await asyncio.sleep(0)
        state = answer.grown()
        stream.post.send({stream: state, other: state})
        with pytest.raises(OSError, match="no room"):
            await feeding
        assert reader.seen == ["a"]
        reading.cancel()

    run(main)


def test_an_engine_that_dies_is_told_to_one_that_is_fed() -> None:
    async def main(stream: Stream) -> None:
        reader = Reader()
        feeding = asyncio.ensure_future(stream.feed(reader.take))
        await asyncio.sleep(0)
        stream.put(Answer().grown())
        stream.put(EngineDeadError("it is gone"))
        with pytest.raises(EngineDeadError, match="it is gone"):
            await feeding
        assert reader.seen == ["a"]

    run(main)


def test_one_that_goes_away_is_given_nothing_more() -> None:
    async def main(stream: Stream) -> None:
        answer, reader = Answer(), Reader()
        feeding = asyncio.ensure_future(stream.feed(reader.take))
        await asyncio.sleep(0)
        stream.put(answer.grown())
        feeding.cancel()
        stream.put(answer.grown())  # before the task has noticed
        with pytest.raises(asyncio.CancelledError):
            await feeding
        stream.put(answer.grown())
        assert reader.seen == ["a"]

    run(main)


def scored() -> CompletionOutput:
    return CompletionOutput(0, "ab", [1, 2], -3.0, [{1: Logprob(-1.0, 1)}, {2: Logprob(-2.0, 2)}])


def test_a_moment_gives_the_state_as_it_was_whatever_came_after() -> None:
    item = scored()
    source = request(item)
    state, wanted = source.moment(), source.snapshot()
    assert state.text == "ab" and not state.finished
    item.text += "c"
    item.token_ids.append(3)
    item.num_shown = 3
    assert item.logprobs is not None
    item.logprobs.append({3: Logprob(-4.0, 1)})
    item.cumulative_logprob = -7.0
    item.finish_reason, item.stop_reason, item.error = "stop", "c", "no"
    source.finished, source.num_cached_tokens, source.kv_transfer_params = True, 4, {"a": 1}
    found = state.output()
    assert not state.finished
    [mine], [theirs] = found.outputs, wanted.outputs
    for name in ("text", "token_ids", "num_shown", "logprobs", "cumulative_logprob"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert (mine.finish_reason, mine.stop_reason, mine.error) == (None, None, None)
    assert (found.finished, found.num_cached_tokens, found.kv_transfer_params) == (False, 0, None)


@pytest.mark.parametrize(
    "source",
    [
        request(scored(), CompletionOutput(1, "x", [4])),
        request(CompletionOutput(0, "ab", [1, 2], finish_reason="length")),
        request(scored(), scores=[None]),
    ],
)
def test_what_is_more_than_one_text_that_grows_is_copied_at_once(source: RequestOutput) -> None:
    state = source.moment()
    assert state.text is None
    source.outputs[0].text += "c"
    assert state.output().outputs[0].text == "ab"
