"""Workloads of the connector kit, and a storm of random operations."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from pegboard.api.connector import FailedBlock, TransferReport
from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineRequest
from pegboard.testing.toy import toy_generate
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_paged import Faults

__all__ = [
    "Storm",
    "check_answers",
    "distortion",
    "family",
    "loaded_entries",
    "requests",
    "run",
    "spoiling",
]

_NOBODY = 10**9
"""An id that was never given."""


def requests(
    count: int = 4, stem: int = 50, tail: int = 20, output: int = 12, salt: str | None = None
) -> list[EngineRequest]:
    """Requests with a common beginning of `stem` tokens and `tail` tokens of their own."""
    return [
        toy_request(
            f"r{number}",
            [*range(stem), *[number] * tail],
            output,
            cache_salt=salt,
        )
        for number in range(count)
    ]


def family(n: int, prompt: int = 45) -> list[EngineRequest]:
    """The `n` sequences of one request."""
    params = SamplingParams(temperature=1.0, n=n)
    ids = list(range(prompt))
    return [
        toy_request(
            f"f.{child}", ids, 12, params=params, child=child, parent="f.0" if child else None
        )
        for child in range(n)
    ]


def run(engine: ToyEngine, wanted: list[EngineRequest]) -> None:
    """Run requests to their ends and compare each with itself alone; every block comes back."""
    for request in wanted:
        engine.add(request)
    engine.run()
    check_answers(engine, wanted)


def check_answers(engine: ToyEngine, wanted: list[EngineRequest]) -> None:
    """All answers are what each request alone must give, and nothing is held."""
    for request in wanted:
        told = engine.told[request.request_id]
        assert told.token_ids == toy_generate(request), f"{request.request_id}: {told}"
    engine.scheduler.check()
    assert engine.scheduler.stats().used_blocks == 0, "blocks are lost"


class Storm:
    """Adds, steps, aborts, finishes and resets at random, with few blocks."""

    def __init__(self, seed: int, make: Callable[[], ToyEngine]) -> None:
        self.rng = random.Random(seed)
        self.engine = make()
        self.done: Counter[str] = Counter()
        self._live: dict[str, EngineRequest] = {}
        self._number = 0

    def run(self, operations: int) -> None:
        """Carry out so many operations, then let everything end."""
        actions = ["add"] * 4 + ["step"] * 12 + ["abort", "finish", "reset"]
        for _ in range(operations):
            getattr(self, self.rng.choice(actions))()
            self.engine.scheduler.check()
        while self.engine.scheduler.has_work():
            self.step()
        stats = self.engine.scheduler.stats()
        assert (stats.running, stats.waiting, stats.used_blocks) == (0, 0, 0), stats
        assert self.engine.scheduler.reset_prefix_cache(), "a block is lost"
        self.done["preemptions"] = stats.preemptions
        self.done["loaded tokens"] = stats.cache.external_hit_tokens

    def add(self) -> None:
        """A request of one or more sequences, with a beginning that others have too."""
        if len(self._live) > 10:
            return
        number, rng = self._number, self.rng
        self._number += 1
        prompt = [(number % 3 + i) % 90 for i in range(rng.randrange(1, 70))]
        for child in range(rng.choice([1, 1, 1, 3])):
            request = toy_request(
                f"{number}.{child}",
                prompt,
                rng.randrange(1, 30),
                seed=number,
                child=child,
                params=SamplingParams(temperature=1.0),
                parent=f"{number}.0" if child else None,
            )
            self.engine.add(request)
            self._live[request.request_id] = request
            self.done["added"] += 1

    def step(self) -> None:
        """One step, and the answers of those that ended."""
        for output in self.engine.step():
            if output.finish_reason is not None:
                self._ended(output.request_id, output.finish_reason)

    def abort(self) -> None:
        """Abort some requests."""
        names = self._pick()
        self.engine.abort(*names)
        for name in names:
            self._ended(name, "abort")

    def finish(self) -> None:
        """End some requests as a stop string would."""
        names = self._pick()
        self.engine.scheduler.finish(names, "stop")
        for name in names:
            self._ended(name, "stop")

    def reset(self) -> None:
        """Forget all cached blocks, if nobody uses one."""
        if self.rng.random() < 0.2:
            self.done["resets"] += self.engine.scheduler.reset_prefix_cache()

    def _pick(self) -> list[str]:
        return self.rng.sample(sorted(self._live), min(len(self._live), self.rng.choice([1, 1, 3])))

    def _ended(self, name: str, reason: str) -> None:
        request = self._live.pop(name)
        told, whole = self.engine.told[name].token_ids, toy_generate(request)
        self.done[reason] += 1
        assert told == (whole if reason == "length" else whole[: len(told)]), f"{name} differs"


def loaded_entries(engine: ToyEngine) -> set[int]:
    """Entries of block tables that the engine's loads filled, in any group."""
    steps = [plan.connector for plan in engine.plans if plan.connector is not None]
    pieces = [piece for step in steps for load in step.loads for piece in load.pieces]
    return {piece.entry for piece in pieces}


def spoiling(entry: int) -> Faults:
    """Loads fail at this entry of the block table, in every group."""
    return Faults(spoils=lambda load, piece: piece.entry == entry)


def distortion(how: str) -> Callable[[TransferReport], TransferReport]:
    """Something that happens to reports on their way; nothing does if `how` is "none"."""
    kept: list[TransferReport] = []

    def distort(report: TransferReport) -> TransferReport:
        if how == "none":
            return report
        if how == "missing":
            report.received, report.saved, report.sent = [], [], []
        elif how == "unknown":
            report.received += [_NOBODY, -1]
            report.sent.append(_NOBODY)
            report.saved.append(_NOBODY)
            report.failed.append(FailedBlock(_NOBODY, 0, 1))
        elif how == "double":
            now = TransferReport([*report.received], [], [*report.sent], [*report.saved])
            kept.append(now)
            for other in kept[-4:]:
                report.received += other.received
                report.saved += other.saved
                report.sent += other.sent
        else:
            kept.append(report)
            held = kept.pop(0) if len(kept) > 5 else TransferReport()
            held.failed, held.stats, held.extra = report.failed, report.stats, report.extra
            return held
        return report

    return distort
