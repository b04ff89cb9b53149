"""Drives a scheduler with the toy executor, one step or several steps ahead.

For tests of bookkeeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from pegboard.api.executor import Pending
from pegboard.api.params import SamplingParams
from pegboard.api.step import LateInputs, StepPlan
from pegboard.api.views import EngineOutput, EngineRequest
from pegboard.config.engine import EngineConfig
from pegboard.engine.connect import connect
from pegboard.kv import form_groups, size_cache
from pegboard.scheduler import TokenBudgetScheduler
from pegboard.scheduler.guard import Connected
from pegboard.testing.toy import ToyExecutor

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["Told", "ToyEngine", "toy_request"]


class Told(msgspec.Struct):
    """Everything that was told about one request."""

    token_ids: list[int] = msgspec.field(default_factory=list)
    scores: list[tuple[int, float]] = msgspec.field(default_factory=list)
    """``(position, log-probability)`` of prompt tokens, in the order told."""
    last: EngineOutput | None = None

    def take(self, output: EngineOutput) -> None:
        """Add what one step told; nothing is told after the end."""
        assert self.finish_reason is None, f"{output.request_id} was told something after its end"
        self.token_ids += output.token_ids
        self.last = output
        if output.prompt_logprobs is not None:
            first = output.prompt_logprobs.first
            for position, entry in enumerate(output.prompt_logprobs.entries, first):
                self.scores.append((position, entry.logprobs[0]))

    @property
    def finish_reason(self) -> str | None:
        return None if self.last is None else self.last.finish_reason

    @property
    def stop_reason(self) -> int | str | None:
        return None if self.last is None else self.last.stop_reason


def toy_request(
    request_id: str, prompt: list[int], max_tokens: int = 8, **options: Any
) -> EngineRequest:
    """A request for the toy model; `options` are fields of `EngineRequest`."""
    options.setdefault("params", SamplingParams(temperature=0.0))
    options.setdefault("seed", 0)
    return EngineRequest(request_id, prompt, max_tokens=max_tokens, **options)


class _Flight(msgspec.Struct):
    """A step that was launched and not landed."""

    plan: StepPlan
    pending: Pending
    written: set[int]
    """Blocks that it writes."""

    def check_apart(self, later: StepPlan) -> None:
        """No later plan hands out a block that this step writes, or a slot that it names."""
        given = {block for row in later.new_blocks for ids in row for block in ids}
        given |= {block for new in later.new_rows for ids in new.blocks for block in ids}
        given |= {copy.target for copy in later.copies}
        assert not given & self.written, (
            f"step {later.step_id} gives away {given & self.written}, "
            f"which step {self.plan.step_id} writes"
        )
        slots = {new.slot for new in later.new_rows} & set(self.plan.slots)
        assert not slots, f"step {later.step_id} gives away slots {slots} of {self.plan.step_id}"


class ToyEngine:
    """A scheduler, a toy executor, and what came of each request.

    `depth` steps are planned before the first of them is updated; 1 is synchronous. `options` are
    fields of `EngineConfig`. A KV connector is found on `board`; `join` may change what is joined
    to the scheduler.
    """

    def __init__(
        self,
        blocks: int = 64,
        *,
        depth: int = 1,
        executor: ToyExecutor | None = None,
        check: bool = True,
        board: Board | None = None,
        join: Callable[[Connected], Connected] = lambda connected: connected,
        **options: Any,
    ) -> None:
        options.setdefault("max_num_seqs", 8)
        config = EngineConfig(model="toy", num_gpu_blocks_override=blocks, **options)
        self.executor = executor or ToyExecutor()
        groups = form_groups(self.executor.kv_slots(), config.block_size)
        cache = size_cache(groups, config, available_bytes=0, max_model_len=1)
        self.executor.allocate(cache)
        self.connected: Connected | None = None
        if config.kv_transfer_config is not None:
            assert board is not None, "a connector is found on a board"
            link = self.executor.connect()
            self.connected = join(connect(board, config.kv_transfer_config, cache, link))
        self.scheduler = TokenBudgetScheduler(config, cache, self.connected)
        self.told: dict[str, Told] = {}
        self.plans: list[StepPlan] = []
        self._depth = depth
        self._check = check
        self._in_flight: deque[_Flight] = deque()

    def add(self, request: EngineRequest) -> None:
        self.scheduler.add(request)
        self.told[request.request_id] = Told()

    def abort(self, *ids: str) -> None:
        self._tell(self.scheduler.abort(ids))

    def launch(self) -> bool:
        """Plan and start one step; False if there is nothing to do."""
        plan = self.scheduler.plan()
        if plan.idle:
            return False
        self.plans.append(plan)
        for flight in self._in_flight:
            flight.check_apart(plan)
        pending = self.executor.execute(plan)
        pending.sample(LateInputs(plan.step_id))
        self._in_flight.append(_Flight(plan, pending, self.executor.written(plan)))
        return True

    def land(self) -> list[EngineOutput]:
        """Update the oldest step in flight."""
        flight = self._in_flight.popleft()
        outputs = self.scheduler.update(flight.plan, flight.pending.result())
        self._tell(outputs)
        return outputs

    def step(self) -> list[EngineOutput]:
        """One step, the next one launched before the last is landed if `depth` allows."""
        launched = self.launch()
        landing = bool(self._in_flight) and (len(self._in_flight) >= self._depth or not launched)
        assert launched or landing or not self.scheduler.has_work(), "work is left but none is done"
        outputs = self.land() if landing else []
        if self._check:
            self.scheduler.check()
        return outputs

    def run(self, limit: int = 100_000) -> dict[str, Told]:
        """Step until nothing is left to do."""
        for _ in range(limit):
            if not self.scheduler.has_work():
                return self.told
            self.step()
        raise AssertionError(f"not done after {limit} steps")

    def loading(self) -> set[str]:
        """Requests that wait for a load, or whose load belongs to a step in flight."""
        steps = [flight.plan.connector for flight in self._in_flight]
        loads = [load for step in steps if step is not None for load in step.loads]
        return self.scheduler.loading() | {load.request_id for load in loads if load.now}

    def cached(self) -> set[tuple[int, bytes]]:
        """What the prefix cache holds: pairs of group and hash."""
        return self.scheduler.cached()

    def close(self) -> None:
        """Close the executor and the connector."""
        self.executor.close()
        if self.connected is not None:
            self.connected.close()

    def _tell(self, outputs: list[EngineOutput]) -> None:
        for output in outputs:
            self.told[output.request_id].take(output)
