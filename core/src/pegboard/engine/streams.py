"""From the thread that reads the engine's outputs to the event loops that wait for them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from pegboard.engine.outputs import Moment, RequestOutput
from pegboard.errors import PegboardError

__all__ = ["Post", "State", "Stream", "Take"]

State = Moment | PegboardError
"""What a stream is told: the request as it was then, or why it cannot go on."""
Take = Callable[[Moment], Awaitable[None] | None]
"""Takes a state at once (None), or is through with it when what it returns has been awaited."""


class Stream:
    """The states of one request, for one reader in the event loop that `post` belongs to.

    A reader that is slow finds the latest state; those that it missed are part of it. After the
    state that is finished the iteration ends.
    """

    def __init__(self, request_id: str, post: Post, cancel: Callable[[Stream], None]) -> None:
        """`cancel` drops the request of a stream whose reader goes away; it may be called for one
        that has ended."""
        self.request_id = request_id
        self.post = post
        self._cancel = cancel
        self._latest: Moment | None = None
        self._error: PegboardError | None = None
        self._waiter: asyncio.Future[Awaitable[None] | None] | None = None
        self._take: Take | None = None
        """Takes states as they are put, while nobody need be woken for them."""
        self._timer: asyncio.TimerHandle | None = None
        self._done = False
        """The last state was put."""

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> RequestOutput:
        state = await self._next()
        if state is None:
            raise StopAsyncIteration
        return state.output()

    async def feed(self, take: Take) -> None:
        """Give each state to `take`, to the last one; in place of iterating.

        `take` is called where the state arrives, so that no task is woken for it, which would cost
        more than all else; it must not wait. While what it returned is awaited nothing is given to
        it, and after that the latest state. Raises what iterating raises, and what `take` raises.
        """
        while True:
            if self._latest is None and not self._done:
                late = await self._news(take)
            elif (state := await self._next()) is not None:
                late = take(state)
            else:
                return
            if late is not None:
                await late

    async def _next(self) -> Moment | None:
        """The latest state; None at the end."""
        while self._latest is None:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._done:
                return None
            await self._news()
        state, self._latest = self._latest, None
        return state

    async def _news(self, take: Take | None = None) -> Awaitable[None] | None:
        """Until something was put that `take` did not take, or took and is not through with."""
        self._waiter, self._take = self.post.loop.create_future(), take
        try:
            return await self._waiter
        finally:
            self._waiter = self._take = None

    def put(self, state: State) -> None:
        """Replace what was not read. In the event loop."""
        if self._take is not None and isinstance(state, Moment) and not state.finished:
            self._give(self._take, state)
        else:
            self._keep(state)

    def _give(self, take: Take, state: Moment) -> None:
        """To one who takes it now."""
        waiter = self._waiter
        assert waiter is not None, "who takes states waits"
        if waiter.done():  # by now somebody waits no more
            self._keep(state)
            return
        try:
            late = take(state)
        except Exception as error:  # not the fault of the other streams
            waiter.set_exception(error)
        else:
            if late is not None:
                waiter.set_result(late)

    def _keep(self, state: State) -> None:
        if isinstance(state, Moment):
            self._latest = state
            if state.finished:
                self._end()
        else:
            self._error = state
            self._end()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def limit(self, seconds: float, expire: Callable[[Stream], None]) -> None:
        """Call `expire` unless the stream ends before. In the event loop."""
        if not self._done:
            self._timer = self.post.loop.call_later(seconds, expire, self)

    def close(self) -> None:
        """The reader goes away: a request that has not ended is dropped."""
        if not self._done:
            self._end()
            self._cancel(self)

    def _end(self) -> None:
        self._done = True
        if self._timer is not None:
            self._timer.cancel()


class Post:
    """What is on its way to the streams of one event loop.

    The loop is woken once for all that comes until it looks, however many streams and steps that
    is; of each stream only the latest state is kept.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._states: dict[Stream, State] = {}

    def send(self, states: dict[Stream, State]) -> bool:
        """From any thread, which gives `states` away; False if the loop is closed, so that nobody
        will ever read them."""
        with self._lock:
            asleep = not self._states
            if asleep:
                self._states = states
            else:
                self._states.update(states)
        if not asleep:
            return not self.loop.is_closed()
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            return False
        return True

    def _deliver(self) -> None:
        with self._lock:
            states, self._states = self._states, {}
        for stream, state in states.items():
            stream.put(state)
