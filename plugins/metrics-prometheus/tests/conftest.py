"""What an engine tells, read as Prometheus reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from pegboard import LLM, AsyncLLM
from pegboard.testing.checkpoints import ByteVocabulary, write_scripted_model, write_tiny_model

SCRIPT = b"abcdefg"
NULL: dict[str, Any] = {
    "distributed_executor_backend": "null",
    "max_model_len": 4096,
    "num_gpu_blocks_override": 1024,
}
"""An engine that computes nothing: each step makes a letter for each request."""
SCRIPTED: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 64,
    "num_gpu_blocks_override": 32,
    "platform": "null",
}


_COUNTED = ("_total", "_count", "_sum", "_bucket")


class Scrape:
    """Samples by name and labels, without those that all of them have."""

    def __init__(self, text: str) -> None:
        self.kinds: dict[str, str] = {}
        self.models: set[str] = set()
        self.samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in text_string_to_metric_families(text):
            self.kinds[family.name] = family.type
            for sample in family.samples:
                labels = dict(sample.labels)
                self.models.add(labels.pop("model_name", ""))
                labels.pop("engine", "")
                key = (sample.name, frozenset(labels.items()))
                assert key not in self.samples, f"{key} is told twice"
                self.samples[key] = sample.value

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples[f"vllm:{name}", frozenset(labels.items())]

    def since(self, before: Scrape) -> Scrape:
        """What was counted after `before`; gauges stay as they are."""
        for (name, labels), value in before.samples.items():
            if name.endswith(_COUNTED):
                self.samples[name, labels] -= value
        return self


@pytest.fixture(scope="session")
def script_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Answers a prompt of two tokens with the script, and then its end."""
    folder: Path = tmp_path_factory.mktemp("script")
    path = write_scripted_model(folder, ByteVocabulary().ids(SCRIPT), prompt_tokens=2)
    return str(path)


class Asked:
    """One way to run an engine, whichever process it has."""

    def __init__(self, engine: LLM | AsyncLLM) -> None:
        self.engine = engine

    def answer(self, prompts: list[Any], params: Any) -> None:
        if isinstance(self.engine, LLM):
            self.engine.generate(prompts, params, use_tqdm=False)
        else:
            self.run(self._gather(self.engine, prompts, params))

    @staticmethod
    async def _gather(engine: AsyncLLM, prompts: list[Any], params: Any) -> None:
        async def one(prompt: Any) -> None:
            async for _ in engine.generate(prompt, params):
                pass

        await asyncio.gather(*map(one, prompts))
        await engine.stats()
        while engine.latest_stats.running:
            await asyncio.sleep(0.01)

    @staticmethod
    def run(work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(asyncio.wait_for(work, 60))

    @property
    def recorder(self) -> Any:
        owner = self.engine.engine if isinstance(self.engine, LLM) else self.engine
        return owner.recorders["prometheus"]

    def scrape(self) -> Scrape:
        return Scrape(generate_latest(self.recorder.registry).decode())


@contextmanager
def running(kind: type[LLM | AsyncLLM], model: str, **options: Any) -> Iterator[Asked]:
    engine = kind(model, **{"stat_loggers": ["prometheus"], **options})
    try:
        yield Asked(engine)
    finally:
        engine.close()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny"), seed=5))


@pytest.fixture(scope="session")
def batches(tiny_path: str) -> Iterator[Asked]:
    with running(LLM, tiny_path, **NULL) as asked:
        yield asked


@pytest.fixture(scope="session")
def serving(tiny_path: str) -> Iterator[Asked]:
    with running(AsyncLLM, tiny_path, **NULL) as asked:
        yield asked


@pytest.fixture(params=["batches", "serving"], ids=["one process", "two processes"])
def asked(request: pytest.FixtureRequest) -> Asked:
    """An engine in each of the two modes, which other tests use too."""
    found: Asked = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def start(tiny_path: str) -> Callable[..., Any]:
    """``with start(LLM, **options) as asked``, for an engine of one's own."""
    return lambda kind, **options: running(kind, tiny_path, **{**NULL, **options})


@pytest.fixture
def scripted(script_path: str) -> Iterator[Asked]:
    with running(LLM, script_path, **SCRIPTED) as asked:
        yield asked


@pytest.fixture(scope="session")
def scrape_text() -> type[Scrape]:
    """Reads what a server answered."""
    return Scrape
