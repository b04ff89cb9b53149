"""Conformance kit for the surface *scheduler*.

A test file of a scheduler subclasses `SchedulerKit`, names the descriptor, and gets the tests
below::

    class TestMyScheduler(SchedulerKit):
        scheduler = MY_SCHEDULER

A toy model runs without tensors: its next token follows from all earlier ones, which it reads back
through the block tables of the plans. So a wrong block, a stale slot or a block that is shared too
early shows in the step that reads it. Every request must get the tokens that it gets alone, and
every block must come back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pegboard.api.params import SamplingParams
from pegboard.api.scheduler_class import SchedulerClass
from pegboard.api.step import StepPlan
from pegboard.api.views import EngineRequest
from pegboard.errors import RequestError, ResourceError
from pegboard.testing.boards import Board, board_with
from pegboard.testing.toy import ToyExecutor, toy_generate
from pegboard.testing.toy_core import CoreRun, ToyCore, toy_core
from pegboard.testing.toy_engine import toy_request
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["SchedulerKit"]


class SchedulerKit(OwnSettings):
    """Tests of a scheduler; subclass it in a test file under a name that begins with ``Test``.

    `scheduler` must be given; the other attributes may be changed.
    """

    scheduler: SchedulerClass
    """The descriptor."""
    options: Mapping[str, Any] = {}
    """Engine options that it wants, for example ``{"scheduling_policy": "priority"}``."""
    chunks = True
    """Prompts longer than a step's budget are served; else they must be refused."""
    operations = 400
    """Random operations of the storm."""
    overlaps: Sequence[bool] = (False, True)
    """Both are tried as far as the descriptor's `max_in_flight` allows."""

    @pytest.fixture(scope="class")
    @classmethod
    def board(cls) -> Board:
        """What is installed, and the scheduler."""
        return board_with("scheduler", cls.scheduler, settings=cls.settings)

    def test_every_request_gets_the_tokens_it_gets_alone(self, board: Board) -> None:
        for overlap in self._overlaps():
            requests = self._requests(12, seed=1)
            told = CoreRun(self.engine(board, overlap), requests).finish()
            for request in requests:
                ours = told[request.request_id]
                assert ours.token_ids == toy_generate(request), f"{request.request_id} differs"
                assert ours.finish_reason in ("stop", "length"), ours.finish_reason

    def test_requests_that_come_later_are_served_too(self, board: Board) -> None:
        for overlap in self._overlaps():
            run = CoreRun(self.engine(board, overlap))
            requests = self._requests(10, seed=2)
            for request in requests:
                run.add(request)
                run.step()
            told = run.finish()
            assert all(told[r.request_id].token_ids == toy_generate(r) for r in requests)

    def test_few_blocks_are_enough_for_everybody_in_time(self, board: Board) -> None:
        for overlap in self._overlaps():
            requests = self._requests(8, seed=3)
            engine = self.engine(board, overlap, num_gpu_blocks_override=22, max_model_len=160)
            told = CoreRun(engine, requests).finish()
            assert all(told[r.request_id].token_ids == toy_generate(r) for r in requests)

    def test_plans_keep_the_rules(self, board: Board) -> None:
        for overlap in self._overlaps():
            engine = self.engine(board, overlap)
            watch = _Watch(engine)
            CoreRun(engine, self._requests(12, seed=4)).finish()
            assert watch.plans > 10, "hardly a step was planned"

    def test_an_idle_scheduler_plans_nothing(self, board: Board) -> None:
        engine = self.engine(board, False)
        assert not engine.has_work()
        assert engine.scheduler.plan().idle, "there is no request, but the plan is not idle"
        CoreRun(engine, self._requests(1, seed=5)).finish()
        assert not engine.has_work()
        assert engine.scheduler.plan().idle
        assert engine.scheduler.reset_prefix_cache(), "no request is left, but a block is used"

    def test_an_aborted_request_is_told_once_and_gives_everything_back(self, board: Board) -> None:
        for overlap in self._overlaps():
            run = CoreRun(self.engine(board, overlap), self._requests(6, seed=6))
            run.step()
            run.step()
            live = [name for name, told in run.told.items() if told.finish_reason is None]
            assert live, "everything is over after two steps"
            run.take(run.engine.abort([live[0], live[-1], "nobody"]))
            for name in (live[0], live[-1]):
                end = run.told[name].finish_reason
                assert end == "abort", f"request {name} was aborted, but its end is {end!r}"
            assert run.engine.abort([live[0]]) == [], "an aborted request was aborted again"
            told = run.finish()
            assert all(one.finish_reason is not None for one in told.values())

    def test_a_finished_request_is_told_nothing_more(self, board: Board) -> None:
        for overlap in self._overlaps():
            request = self._request("a", [1, 2, 3], 30)
            run = CoreRun(self.engine(board, overlap), [request, self._request("b", [4], 9)])
            while not run.told["a"].token_ids:
                run.step()
            before = list(run.told["a"].token_ids)
            run.engine.finish(["a", "nobody"], "stop")
            told = run.finish()
            assert told["a"].token_ids == before, "tokens were told after the end"
            assert told["b"].token_ids == toy_generate(self._request("b", [4], 9))

    def test_an_id_in_use_and_a_request_that_never_fits_are_refused(self, board: Board) -> None:
        engine = self.engine(board, False, num_gpu_blocks_override=22, max_model_len=160)
        run = CoreRun(engine, [self._request("a", [1, 2], 5)])
        with pytest.raises(RequestError) as caught:
            engine.add(self._request("a", [3], 5))
        assert caught.value.field == "request_id"
        with pytest.raises(ResourceError):
            engine.add(self._request("long", [1] * 160, 400))
        assert run.finish()["a"].token_ids == toy_generate(self._request("a", [1, 2], 5))

    def test_a_step_that_fails_for_one_request_ends_it_alone(self, board: Board) -> None:
        for overlap in self._overlaps():
            engine = self.engine(board, overlap, executor=ToyExecutor(poison=96))
            good, bad = self._request("good", [1, 2], 9), self._request("bad", [1, 96], 9)
            told = CoreRun(engine, [good, bad]).finish()
            assert told["bad"].finish_reason == "error"
            assert told["good"].token_ids == toy_generate(good)

    def test_everything_is_restated_when_that_is_asked(self, board: Board) -> None:
        for overlap in self._overlaps():
            requests = self._requests(6, seed=7)
            run = CoreRun(self.engine(board, overlap), requests)
            for _ in range(4):
                run.step()
                run.engine.scheduler.resync()
            told = run.finish()
            assert all(told[r.request_id].token_ids == toy_generate(r) for r in requests)

    def test_random_operations_leave_every_block_free(self, board: Board) -> None:
        for overlap in self._overlaps():
            storm = _Storm(self, self.engine(board, overlap, num_gpu_blocks_override=40))
            storm.run(self.operations)
            for name in ("added", "length", "abort"):
                assert storm.done[name] >= 3, f"{name}: {storm.done[name]} times only"

    # What the tests are made of

    def engine(
        self,
        board: Board,
        overlap: bool,
        executor: ToyExecutor | None = None,
        **options: Any,
    ) -> ToyCore:
        """A toy engine with the scheduler under test."""
        least = {"max_num_batched_tokens": 24} if self.chunks else {"max_num_batched_tokens": 256}
        merged = {**least, "scheduler_cls": self.scheduler.name, **options, **self.options}
        return toy_core(overlap, executor, board=board, **merged)

    def _overlaps(self) -> list[bool]:
        most = self.scheduler.max_in_flight
        return [overlap for overlap in self.overlaps if not overlap or most >= 2]

    def _request(self, name: str, prompt: list[int], tokens: int, **options: Any) -> EngineRequest:
        return toy_request(name, prompt, tokens, **options)

    def _requests(self, count: int, seed: int) -> list[EngineRequest]:
        """Requests of many lengths, some with common beginnings, seeds, end ids, several
        sequences."""
        rng, found = random.Random(seed), list[EngineRequest]()
        stem = [rng.randrange(90) for _ in range(60)]
        while len(found) < count:
            own = [rng.randrange(90), rng.randrange(90)]
            prompt = [*stem[: rng.choice([0, 17, 40])], *own]
            n = rng.choice([1, 1, 3])
            name, ends = f"{len(found)}", rng.sample(range(97), rng.choice([0, 0, 8]))
            for child in range(n):
                found.append(
                    self._request(
                        f"{name}.{child}",
                        prompt,
                        rng.randrange(1, 30),
                        params=SamplingParams(temperature=1.0, n=n, max_tokens=30),
                        seed=rng.randrange(1000),
                        end_ids=ends,
                        child=child,
                        parent=f"{name}.0" if child else None,
                    )
                )
        return found


class _Watch:
    """Looks at every plan of an engine."""

    def __init__(self, engine: ToyCore) -> None:
        self.plans = 0
        self._plan = engine.scheduler.plan
        engine.scheduler.plan = self.plan  # type: ignore[method-assign]
        self._known: set[int] = set()
        self._last = -1

    def plan(self) -> StepPlan:
        plan = self._plan()
        self.plans += plan.rows > 0
        columns = (plan.slots, plan.starts, plan.counts, plan.samples, plan.new_blocks)
        assert len({len(column) for column in columns}) == 1, "columns differ in length"
        assert len(set(plan.slots)) == plan.rows, f"a slot stands twice: {plan.slots}"
        assert all(count >= 1 for count in plan.counts), f"a row has no token: {plan.counts}"
        assert plan.tokens <= 256 and plan.rows <= 8, (plan.tokens, plan.rows)
        if plan.rows:
            assert plan.step_id > self._last, f"step {plan.step_id} comes after {self._last}"
            self._last = plan.step_id
        if plan.resync:
            self._known.clear()
        self._known -= set(plan.freed_slots)
        self._known |= {row.slot for row in plan.new_rows}
        strange = set(plan.slots) - self._known
        assert not strange, f"slots {strange} were never given to a request"
        return plan


class _Storm:
    """Adds, steps, aborts, finishes and resyncs at random."""

    def __init__(self, kit: SchedulerKit, engine: ToyCore) -> None:
        self.done = Counter[str]()
        self._kit = kit
        self._run = CoreRun(engine)
        self._rng = random.Random(11)
        self._requests: dict[str, EngineRequest] = {}

    def run(self, operations: int) -> None:
        actions = ["add"] * 4 + ["step"] * 12 + ["abort", "finish", "resync"]
        for number in range(operations):
            getattr(self, f"_{self._rng.choice(actions)}")(number)
        for name, told in self._run.finish().items():
            self.done[told.finish_reason or "finished"] += 1
            whole = toy_generate(self._requests[name])
            assert told.token_ids == whole[: len(told.token_ids)], f"{name} differs"
        assert self._run.engine.scheduler.reset_prefix_cache(), "a block is lost"

    def _live(self) -> list[str]:
        told = self._run.told
        return [name for name in self._requests if told[name].finish_reason is None]

    def _add(self, number: int) -> None:
        if len(self._live()) < 12:
            prompt = [(number % 3 + i) % 90 for i in range(self._rng.randrange(1, 60))]
            request = self._kit._request(f"{number}", prompt, self._rng.randrange(1, 30))
            self._requests[request.request_id] = request
            self._run.add(request)
            self.done["added"] += 1

    def _step(self, _: int) -> None:
        self._run.step()

    def _abort(self, _: int) -> None:
        if live := self._live():
            self._run.take(self._run.engine.abort([self._rng.choice(live)]))

    def _finish(self, _: int) -> None:
        running = [name for name in self._live() if self._run.told[name].token_ids]
        if running:
            self._run.engine.finish([running[0]], "stop")
            del self._requests[running[0]], self._run.told[running[0]]

    def _resync(self, _: int) -> None:
        self._run.engine.scheduler.resync()
