"""Which executor runs the steps."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from pegboard import LLM, SamplingParams
from pegboard.api.executor import ExecutorClass, ExecutorContext
from pegboard.errors import ConfigError, MissingPluginError, PluginError
from pegboard.plugins import Board, load_plugins
from pegboard.testing.checkpoints import write_tiny_model

SMALL = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16}


class Around:
    """The core's own, counted."""

    def __init__(self, ctx: ExecutorContext) -> None:
        self.inner = ctx.build("local")
        self.plans = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def execute(self, plan: Any) -> Any:
        self.plans += 1
        return self.inner.execute(plan)


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Board:
    module = types.ModuleType("executors_of_tests")
    vars(module).update(Around=Around, fails=lambda ctx: ctx.nothing, nothing=lambda ctx: object())
    monkeypatch.setitem(sys.modules, "executors_of_tests", module)
    names = {"around": "Around", "fails": "fails", "nothing": "nothing"}
    made = [ExecutorClass(name, f"executors_of_tests:{made}") for name, made in names.items()]
    return load_plugins(extra=[("executor", one) for one in made])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = write_tiny_model(tmp_path_factory.mktemp("model"))
    return str(path)


def test_a_registered_executor_runs_the_steps(board: Board, model: str) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with LLM(model, board=board, distributed_executor_backend="around", **SMALL) as llm:
        executor: Any = llm.engine.core.executor
        found = llm.generate("text", params, use_tqdm=False)[0].outputs[0].token_ids
        assert isinstance(executor, Around) and executor.plans >= 5
    with LLM(model, **SMALL) as llm:
        assert type(llm.engine.core.executor).__name__ == "LocalExecutor"
        assert llm.generate("text", params, use_tqdm=False)[0].outputs[0].token_ids == found


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"distributed_executor_backend": "ray"}, MissingPluginError, "executor 'ray'"),
        ({"distributed_executor_backend": "ranks"}, ConfigError, "serves several"),
        (
            {"distributed_executor_backend": "local", "tensor_parallel_size": 2},
            ConfigError,
            "tensor_parallel_size=2: this executor serves one",
        ),
        ({"distributed_executor_backend": "fails"}, PluginError, "made no executor: Attribute"),
        ({"distributed_executor_backend": "nothing"}, PluginError, "is no executor: it lacks max"),
    ],
)
def test_what_cannot_run_them_is_refused(
    board: Board, model: str, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        LLM(model, board=board, **SMALL, **options)
