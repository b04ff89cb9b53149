"""The workloads. One definition for every engine, so that a table compares like with like.

Prompts are random token ids, greedy and without end ids unless said. No prompt is used twice, not
even between warm-up and timed runs; a run that hits the prefix cache, or gives another number of
tokens than asked for, fails.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from pegboard import LLM, RequestOutput, SamplingParams

Prompts = Sequence[Sequence[int]]
Figures = dict[str, float]
"""By metric, see `METRICS`."""


@attrs.frozen
class Metric:
    """How a figure is read."""

    unit: str
    lower_is_better: bool
    ceiling: str | None
    """The limit of the card that bounds it: ``read`` (bandwidth) or ``gemm``; None for neither."""


METRICS: Mapping[str, Metric] = {
    "TPOT": Metric("ms", True, "read"),
    "TTFT": Metric("ms", True, "gemm"),
    "input": Metric("tok/s", False, "gemm"),
    "output": Metric("tok/s", False, "read"),
    "total": Metric("tok/s", False, "gemm"),
    "start": Metric("s", True, None),
}
"""``TPOT``: time per output token after the first. ``TTFT``: until a whole batch has its first
tokens. ``input``, ``output``, ``total``: tokens per second of the whole run. ``start``: from no
engine to its first token."""


class BadRunError(Exception):
    """A run whose time means nothing."""


class Driver:
    """Runs prompts on an engine and draws fresh ones."""

    def __init__(self, llm: LLM, seed: int = 0) -> None:
        self.llm = llm
        self._draws = random.Random(f"prompts {seed}")
        self._vocabulary = range(llm.model.facts.vocab_size)

    def ids(self, count: int) -> list[int]:
        """Fresh random tokens."""
        return self._draws.choices(self._vocabulary, k=count)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [self.ids(length) for _ in range(count)]

    def timed(
        self,
        prompts: Prompts,
        outputs: int | Sequence[int],
        *,
        temperature: float = 0.0,
        cached: int = 0,
    ) -> float:
        """Seconds until all prompts have their `outputs` tokens; `cached` of each prompt's tokens
        must come from the cache."""
        wanted = [outputs] * len(prompts) if isinstance(outputs, int) else list(outputs)
        params = [
            SamplingParams(temperature=temperature, max_tokens=count, ignore_eos=True, seed=None)
            for count in wanted
        ]
        given: Any = list(prompts)
        begin = time.perf_counter()
        answers = self.llm.generate(given, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        _check_run(answers, wanted, cached)
        return seconds


def _check_run(answers: Sequence[RequestOutput], wanted: Sequence[int], cached: int) -> None:
    for answer, count in zip(answers, wanted, strict=True):
        output = answer.outputs[0]
        if len(output.token_ids) != count:
            why = output.error or output.finish_reason
            raise BadRunError(f"{len(output.token_ids)} tokens instead of {count}: {why}")
        again = answer.metrics.preemptions  # who lost its blocks may find them in the cache
        if answer.num_cached_tokens != cached and not again:
            raise BadRunError(f"{answer.num_cached_tokens} cached tokens instead of {cached}")


class Workload(Protocol):
    """What is measured in one cell of the table."""

    @property
    def name(self) -> str: ...

    @property
    def batch(self) -> int:
        """Requests at once."""
        ...

    @property
    def longest(self) -> int:
        """Tokens of the longest request, output included."""
        ...

    def warm_up(self, driver: Driver) -> None:
        """Meet every shape of the timed runs once, with other prompts."""
        ...

    def measure(self, driver: Driver) -> Figures: ...


FULL_STEPS = 2
"""So many full steps of prompts warm up what processes prompts."""
BUDGET = 16_384


def _prompts_to_warm(count: int, length: int) -> int:
    return min(count, max(1, FULL_STEPS * BUDGET // length))


@attrs.frozen
class Closed:
    """`batch` requests at once; a twin run with one output token gives the time of the prompts."""

    batch: int
    prompt: int = 1024
    output: int = 257

    @property
    def name(self) -> str:
        return f"closed-{self.batch}"

    @property
    def longest(self) -> int:
        return self.prompt + self.output

    def warm_up(self, driver: Driver) -> None:
        whole = _prompts_to_warm(self.batch, self.prompt)
        prompts = driver.prompts(whole, self.prompt)
        prompts += driver.prompts(self.batch - whole, max(1, self.prompt // 16))
        driver.timed(prompts, min(4, self.output))

    def measure(self, driver: Driver) -> Figures:
        first = driver.timed(driver.prompts(self.batch, self.prompt), 1)
        whole = driver.timed(driver.prompts(self.batch, self.prompt), self.output)
        return {
            "TPOT": 1e3 * (whole - first) / (self.output - 1),
            "TTFT": 1e3 * first,
            "output": self.batch * self.output / whole,
        }


@attrs.frozen
class Prefill:
    """`batch` long prompts, one output token each."""

    batch: int
    prompt: int

    @property
    def name(self) -> str:
        return f"prefill-{self.batch}x{self.prompt}"

    @property
    def longest(self) -> int:
        return self.prompt + 1

    def warm_up(self, driver: Driver) -> None:
        driver.timed(driver.prompts(_prompts_to_warm(self.batch, self.prompt), self.prompt), 1)

    def measure(self, driver: Driver) -> Figures:
        seconds = driver.timed(driver.prompts(self.batch, self.prompt), 1)
        return {"input": self.batch * self.prompt / seconds}


@attrs.define
class Mixed:
    """Requests of many lengths, sampled at temperature 0.6. The lengths, and the ids of the first
    run, are those of ``random.Random(0)``; later runs draw other ids."""

    batch: int = 256
    shortest: int = 100
    most: int = 1024
    largest_id: int = 10_000
    _runs: int = attrs.field(default=0, init=False)

    @property
    def name(self) -> str:
        return f"mixed{self.batch}"

    @property
    def longest(self) -> int:
        return 2 * self.most

    def requests(self) -> tuple[list[list[int]], list[int]]:
        """Prompts, and output tokens of each."""
        draws = random.Random(0)
        spread, largest = (self.shortest, self.most), self.largest_id
        prompts = [
            [draws.randint(0, largest) for _ in range(draws.randint(*spread))]
            for _ in range(self.batch)
        ]
        return prompts, [draws.randint(*spread) for _ in range(self.batch)]

    def warm_up(self, driver: Driver) -> None:
        prompts, _ = self.requests()
        others = [driver.ids(len(prompt)) for prompt in prompts]
        driver.timed(others, min(8, self.shortest), temperature=0.6)

    def measure(self, driver: Driver) -> Figures:
        prompts, outputs = self.requests()
        if self._runs:
            prompts = [driver.ids(len(prompt)) for prompt in prompts]
        self._runs += 1
        seconds = driver.timed(prompts, outputs, temperature=0.6)
        return {"output": sum(outputs) / seconds}


@attrs.frozen
class Offline:
    """Many equal requests, most of which wait."""

    batch: int = 1000
    prompt: int = 1024
    output: int = 128

    @property
    def name(self) -> str:
        return f"offline{self.batch}"

    @property
    def longest(self) -> int:
        return self.prompt + self.output

    def warm_up(self, driver: Driver) -> None:
        warm = _prompts_to_warm(self.batch, self.prompt)
        outputs = [2 + number % 8 for number in range(warm)]  # prompts beside decodes
        driver.timed(driver.prompts(warm, self.prompt), outputs)

    def measure(self, driver: Driver) -> Figures:
        seconds = driver.timed(driver.prompts(self.batch, self.prompt), self.output)
        return {"total": self.batch * (self.prompt + self.output) / seconds}


@attrs.frozen
class Shared:
    """One long prefix, in the cache before the timed runs; requests of prefix and own tokens."""

    prefix: int = 8192
    batch: int = 64
    own: int = 128
    output: int = 128
    name: str = "shared-8k"
    _prefixes: list[list[int]] = attrs.field(factory=list, init=False)

    @property
    def longest(self) -> int:
        return self.prefix + self.own + self.output

    def warm_up(self, driver: Driver) -> None:
        self._prefixes.append(driver.ids(self.prefix))
        driver.timed(self._prefixes[-1:], 1)
        driver.timed(self._prompts(driver), min(4, self.output), cached=self.prefix)

    def measure(self, driver: Driver) -> Figures:
        first = driver.timed(self._prompts(driver), 1, cached=self.prefix)
        whole = driver.timed(self._prompts(driver), self.output, cached=self.prefix)
        return {"TTFT": 1e3 * first, "output": self.batch * self.output / whole}

    def _prompts(self, driver: Driver) -> list[list[int]]:
        return [self._prefixes[-1] + driver.ids(self.own) for _ in range(self.batch)]


BATCHES = (1, 8, 32, 64, 128, 256)


def standard() -> tuple[Workload, ...]:
    """Those that the references were measured with."""
    return (
        *(Closed(batch) for batch in BATCHES),
        Prefill(64, 2048),
        Prefill(4, 16_384),
        Prefill(1, 32_768),
        Mixed(),
        Offline(),
        Shared(),
    )


def small() -> tuple[Workload, ...]:
    """The same kinds, for a tiny model on any machine."""
    return (
        Closed(1, prompt=16, output=5),
        Closed(8, prompt=16, output=5),
        Prefill(4, 48),
        Mixed(batch=8, shortest=4, most=16, largest_id=200),
        Offline(batch=12, prompt=16, output=4),
        Shared(prefix=64, batch=4, own=8, output=4),
    )
