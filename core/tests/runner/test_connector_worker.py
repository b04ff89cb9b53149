"""The KV connector in the runner: around each step, layer by layer, and through `LLM`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard import LLM, SamplingParams
from pegboard.api.connector import (
    ConnectorStep,
    Load,
    Piece,
    TransferReport,
    WorkerHalf,
)
from pegboard.api.step import StepPlan
from pegboard.errors import ConfigError, MissingPluginError, PluginError
from pegboard.plugins import Board, build_board
from pegboard.runner.transfers import LayerwiseKernel, NoWorker, Worker
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.connectors import SCRIPTED_CONNECTOR
from pegboard.testing.scripted_connector import Script, ScriptedWorker

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
SMALL: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 128,
    "num_gpu_blocks_override": 32,
    "max_num_seqs": 4,
}
PROMPT = list(range(3, 70))
LOADS = [
    Load(1, "r", True, 8, (Piece(0, 0, 5, b"k"),)),
    Load(2, "s", False, 8, (Piece(0, 0, 6, b"k"),)),
]


class Recorder(WorkerHalf):
    """Notes its calls; one of them may raise."""

    def __init__(self, breaks: str = "") -> None:
        self.calls: list[str] = []
        self._breaks = breaks

    def start_load(self, metadata: Any) -> None:
        self._note(f"start_load {metadata}")

    def drop(self, load_id: int) -> bool:
        self._note(f"drop {load_id}")
        return load_id != 9

    def wait_layer(self, key: str) -> None:
        self._note(f"wait_layer {key}")

    def save_layer(self, key: str) -> None:
        self._note(f"save_layer {key}")

    def wait_save(self) -> None:
        self._note("wait_save")

    def poll(self) -> TransferReport:
        self._note("poll")
        return TransferReport(received=[7])

    def reset(self, reason: str) -> None:
        self._note(f"reset {reason}")

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self._breaks and call.startswith(self._breaks):
            raise OSError("broken on purpose")


class LayeredWorker(ScriptedWorker):
    """Loads and saves layer by layer, which the counts show."""

    def wait_layer(self, key: str) -> None:
        self._script.counts[f"wait {key}"] += 1

    def save_layer(self, key: str) -> None:
        self._script.counts[f"save {key}"] += 1


class UnstoppableWorker(WorkerHalf):
    """Says that it works between steps, and cannot be stopped."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx


class NoHalf:
    """Neither half."""

    def __init__(self, ctx: Any) -> None:
        self.ctx = ctx


def plan(**parts: Any) -> StepPlan:
    step = StepPlan(0, [], [], [], [], [])
    step.connector = ConnectorStep("orders", LOADS, **parts)
    return step


def drive(half: Recorder, step: StepPlan, layers: tuple[str, ...] = ()) -> TransferReport | None:
    worker = Worker(half, name="recorder", layers=layers)
    worker.begin(step)
    for key in ("0.self", "1.self", "1.other"):
        worker.before_layer(key)
        worker.after_layer(key)
    return worker.end(step)


def test_a_step_is_loaded_before_and_saved_after_its_forward_pass() -> None:
    half = Recorder()
    report = drive(half, plan(reset="cache"), ("0.self", "1.self"))
    layers = [f"{call} {n}.self" for n in (0, 1) for call in ("wait_layer", "save_layer")]
    assert half.calls == ["reset cache", "start_load orders", *layers, "wait_save", "poll"]
    assert report is not None and report.received == [7]


def test_only_layerwise_connectors_hear_of_layers_and_only_inside_their_steps() -> None:
    half = Recorder()
    drive(half, plan())
    assert half.calls == ["start_load orders", "wait_save", "poll"]
    half = Recorder()
    assert drive(half, StepPlan(0, [], [], [], [], []), ("0.self",)) is None
    assert half.calls == []


@pytest.mark.parametrize("breaks", ["start_load", "wait_layer"])
def test_all_loads_of_a_step_fail_with_the_worker(breaks: str) -> None:
    report = drive(Recorder(breaks), plan(), ("0.self",))
    assert report is not None
    assert {(f.load_id, f.block) for f in report.failed} == {(1, 5), (2, 6)}
    assert report.received == [7, 2]


@pytest.mark.parametrize("breaks", ["save_layer", "wait_save", "poll", "reset"])
def test_a_fault_in_saving_or_reporting_fails_no_load(breaks: str) -> None:
    report = drive(Recorder(breaks), plan(reset="cache"), ("0.self",))
    assert report is not None
    assert report.failed == []


def test_without_orders_the_worker_is_only_asked_and_the_loads_fail() -> None:
    half = Recorder()
    report = drive(half, plan(broken=True), ("0.self",))
    assert half.calls == ["poll"]
    assert report is not None and len(report.failed) == 2


@pytest.mark.parametrize("broken", [True, False])
def test_loads_given_up_are_stopped_first_whoever_broke_down(broken: bool) -> None:
    half = Recorder()
    report = drive(half, plan(dropped=[3, 9, 4], broken=broken))
    assert half.calls[:3] == ["drop 3", "drop 9", "drop 4"]
    assert report is not None
    assert report.stopped == [3, 4], "number 9 goes on"


def test_what_cannot_be_stopped_is_not_reported_as_stopped() -> None:
    report = drive(Recorder("drop"), plan(dropped=[3]))
    assert report is not None
    assert report.stopped == []


def test_loads_of_a_worker_that_broke_down_are_stopped_or_astray() -> None:
    half, step = Recorder("start_load"), plan()
    assert step.connector is not None
    step.connector.loads = [*LOADS, Load(9, "t", False, 8, ())]
    report = drive(half, step)
    assert half.calls[3:] == ["drop 1", "drop 2", "drop 9"]
    assert report is not None and report.astray == [9]


def test_kernels_are_wrapped_for_layerwise_connectors_only() -> None:
    kernel: Any = object()
    assert NoWorker().wrap(kernel) is kernel
    assert Worker(Recorder(), name="r").wrap(kernel) is kernel
    assert isinstance(Worker(Recorder(), name="r", layers=["0"]).wrap(kernel), LayerwiseKernel)


# Through the whole engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), seed=5)


@pytest.fixture(scope="module")
def board() -> Board:
    here = __name__
    halves = {"scheduler": f"{here}:NoHalf", "worker": f"{here}:NoHalf"}
    abilities = attrs.evolve(SCRIPTED_CONNECTOR.abilities, layerwise=True)
    return build_board(
        extra=[
            ("connector", attrs.evolve(SCRIPTED_CONNECTOR, name="plain")),
            (
                "connector",
                attrs.evolve(
                    SCRIPTED_CONNECTOR,
                    name="layered",
                    worker=f"{here}:LayeredWorker",
                    abilities=abilities,
                ),
            ),
            ("connector", attrs.evolve(SCRIPTED_CONNECTOR, name="no halves", **halves)),
            (
                "connector",
                attrs.evolve(
                    SCRIPTED_CONNECTOR, name="unstoppable", worker=f"{here}:UnstoppableWorker"
                ),
            ),
        ]
    )


@pytest.fixture
def make(model: Path, board: Board) -> Callable[..., LLM]:
    def build(script: Script, name: str = "plain", **options: Any) -> LLM:
        config = {"kv_connector": name, "kv_connector_extra_config": {"script": script}}
        return LLM(str(model), board=board, kv_transfer_config=config, **SMALL, **options)

    return build


def answer(llm: LLM, prompt: Any = PROMPT) -> Any:
    return llm.generate(prompt, GREEDY, use_tqdm=False)[0]


@pytest.mark.parametrize("outcome", ["now", "later", "pending"])
def test_a_second_engine_gives_the_same_tokens_from_what_the_first_one_saved(
    make: Callable[..., LLM], model: Path, board: Board, outcome: Any
) -> None:
    with LLM(str(model), board=board, **SMALL) as llm:
        alone = answer(llm).outputs[0].token_ids
    script = Script(outcomes=(outcome,), holds=True)
    with make(script) as llm:
        assert answer(llm).num_cached_tokens == 0
        while llm.engine.core.has_work():
            llm.engine.step()
    with make(script) as llm:
        loaded = answer(llm)
    assert loaded.outputs[0].token_ids == alone
    assert loaded.num_cached_tokens == 64
    assert script.counts["loaded"] == 4
    assert script.counts["close"] == script.counts["worker close"] == 2


def test_a_layerwise_connector_is_called_around_each_layer(make: Callable[..., LLM]) -> None:
    script = Script()
    with make(script, "layered") as llm:
        steps = [answer(llm).outputs[0].token_ids, script.counts["wait 0.self"]]
        layers = llm.model.facts.layers
    assert steps[1] == len(steps[0]), "one call per step"
    for layer in range(layers):
        assert script.counts[f"save {layer}.self"] == steps[1]


def test_parameters_go_in_with_the_prompt_and_come_out_with_the_result(
    make: Callable[..., LLM],
) -> None:
    with make(Script(keeps=True)) as llm:
        seen: list[Any] = []
        half = llm.engine.core._connected.half
        finished = half.finished
        half.finished = lambda what: seen.append(what.request.kv_transfer) or finished(what)
        result = answer(llm, {"prompt_token_ids": PROMPT, "kv_transfer_params": {"from": "x"}})
        assert seen == [{"from": "x"}]
        assert isinstance(result.kv_transfer_params["keep"], int)
        assert answer(llm, [1, 2]).kv_transfer_params is not None
        assert llm.engine.core.store_events() == []


def test_other_weights_and_dtypes_have_another_identity(
    make: Callable[..., LLM], tmp_path: Path, board: Board, model: Path
) -> None:
    def identity(path: Path, **options: Any) -> Any:
        config = {"kv_connector": "plain", "kv_connector_extra_config": {"script": Script()}}
        settings = {**SMALL, **options}
        with LLM(str(path), board=board, kv_transfer_config=config, **settings) as llm:
            return llm.engine.core._connected.half._ctx.identity

    same = identity(model)
    twin = write_tiny_model(tmp_path / "twin", seed=5)
    assert identity(twin) == same
    assert identity(write_tiny_model(tmp_path / "other", seed=6))["weights"] != same["weights"]
    assert identity(model, dtype="bfloat16") != same
    assert identity(model, block_size=32) != same


def test_what_cannot_work_is_refused_before_anything_is_loaded(
    make: Callable[..., LLM], model: Path
) -> None:
    with pytest.raises(MissingPluginError, match="'nothing'"):
        make(Script(), "nothing")
    with pytest.raises(ConfigError, match="script"):
        make(None)
    with pytest.raises(PluginError, match="worker half of KV connector 'no halves' is a NoHalf"):
        make(Script(), "no halves")
    with pytest.raises(PluginError, match=r"'unstoppable'.* has no method 'drop'"):
        make(Script(), "unstoppable")
