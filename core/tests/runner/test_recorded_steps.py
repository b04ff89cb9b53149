"""Decode steps replayed from recordings; here a recording is a function that is called again."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import KVTensors
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Immediate
from pegboard.api.step import LateInputs
from pegboard.config.logits import LogitsRoster
from pegboard.errors import UnsupportedError
from pegboard.nn import OpTable
from pegboard.nn.cache_ops import paged_view
from pegboard.runner.recorded import bucket_sizes
from pegboard.testing.processors import SCRIPTED_PROCESSORS

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
BLOCK = 4


@attrs.frozen
class Again:
    work: Callable[[], None]

    def replay(self) -> None:
        self.work()


class Recorder(Immediate):
    """A device that records: `record` must not leave the traces of running."""

    records = True

    def record(self, work: Callable[[], None]) -> Again:
        return Again(work)


class DeviceSumKernel:
    """The sum kernel of the conftest, by what is on the device alone."""

    def __init__(self) -> None:
        self.shared: list[int] = []
        """Tokens that all rows share, of each call, from the device."""

    def plan(self, step: AttentionStep) -> AttentionStep:
        if step.captured:
            assert list(step.query_lens) == [1] * len(step.kv_lens_device)
            assert not step.block_lists
        return step

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, step: AttentionStep
    ) -> torch.Tensor:
        assert step.common_prefix_device is not None
        self.shared.append(int(step.common_prefix_device))
        assert self.shared[-1] <= step.common_prefix
        pages = paged_view(kv)
        out = torch.zeros_like(inputs.query)
        for row, table in enumerate(step.block_table.long()):
            length = int(step.kv_lens_device[row])
            begin, end = step.query_starts[row : row + 2].tolist()
            if not length:
                out[begin:end] = float("nan")  # nobody reads the result of an empty row
                continue
            used = table[: -(-length // BLOCK)]
            keys = pages[0, used].flatten(0, 1)[:length, 0, 0]
            values = pages[1, used].flatten(0, 1)[:length, 0, 0]
            out[begin:end, 0, 0] = (keys * values).cumsum(0)[length - (end - begin) :]
        return out


def recording_driver(make_driver, execution):
    """A driver whose runner records, on two groups whose keys and values the core stores."""
    choose = OpVersion(name="test.choose", op="choose", function="pegboard.sampling.choose:choose")
    made = make_driver(
        groups=2,
        kernel=DeviceSumKernel,
        backend={"capture": "whole", "fused_kv_write": False},
        ops=OpTable.choose([choose], platform="test", dtype="float32"),
        execution=execution,
        processors=LogitsRoster(SCRIPTED_PROCESSORS),
    )
    made.runner.record()
    return made


@pytest.fixture
def driver(make_driver):
    return recording_driver(make_driver, Recorder())


def replays(driver) -> int:
    return driver.runner.recorded()["replays"]


class Unable(Recorder):
    def record(self, work: Callable[[], None]) -> Again:
        raise UnsupportedError("this work cannot be recorded: it waits")


def test_what_cannot_be_recorded_runs_step_by_step(make_driver, monkeypatch):
    said = []

    class Logger:
        def warning(self, event: str, **facts: str) -> None:
            said.append((event, facts["reason"]))

    monkeypatch.setattr("pegboard.runner.runner.get_logger", lambda name: Logger())
    made = recording_driver(make_driver, Unable())
    assert said == [("steps are not recorded", "this work cannot be recorded: it waits")]
    made.add(2, PROMPT)
    assert made.generate(2, 9, 100) == made.model.greedy(PROMPT, 9)
    assert made.runner.recorded() == {"recordings": 0, "replays": 0}


def test_bucket_sizes_end_with_the_largest_step():
    assert bucket_sizes(6) == (1, 2, 4, 6)
    assert bucket_sizes(40) == (1, 2, 4, 8, 16, 24, 32, 40)
    assert bucket_sizes(300)[-3:] == (256, 288, 300)


def test_a_lone_request_gets_the_tokens_of_the_model_without_cache(driver):
    driver.add(2, PROMPT)
    assert driver.generate(2, 30, 100) == driver.model.greedy(PROMPT, 30)
    assert replays(driver) == 29


def test_rows_of_a_padded_step_are_served_and_nothing_else_is_touched(driver):
    prompts = {0: PROMPT, 5: [7], 3: [8, 9]}
    for slot, prompt in prompts.items():
        driver.add(slot, prompt)
    found = {slot: [] for slot in prompts}
    driver_step(driver, {slot: len(prompt) for slot, prompt in prompts.items()}, found)
    before = driver.storage["0.self"].data.clone()
    for _ in range(9):
        driver_step(driver, dict.fromkeys(prompts, 1), found)
    assert replays(driver) == 9  # three rows in a recording for four
    for slot, prompt in prompts.items():
        assert found[slot] == driver.model.greedy(prompt, 10)
    null = driver.storage["0.self"].data.select(1, 0)
    assert torch.equal(null, before.select(1, 0)), "padding wrote to the null block"


def driver_step(driver, counts, found) -> None:
    result = driver.step(counts)
    for slot, tokens in zip(result.slots, result.token_ids, strict=True):
        found[slot] += tokens


def test_mixed_steps_and_recorded_ones_take_turns(driver):
    driver.add(0, PROMPT)
    driver.add(1, PROMPT[::-1])
    found = {0: [], 1: []}
    driver_step(driver, {0: len(PROMPT)}, found)
    for count in (1, 3, 4, 2, 1):  # the second prompt comes in beside the first one's decoding
        driver_step(driver, {0: 1, 1: count}, found)
    for _ in range(6):
        driver_step(driver, {1: 1, 0: 1}, found)
    assert replays(driver) == 6 + 1  # the last chunk of one token is a decode step too
    assert found[0] == driver.model.greedy(PROMPT, len(found[0]))
    assert found[1] == driver.model.greedy(PROMPT[::-1], len(found[1]))


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "seed": 3, "top_k": 5, "top_p": 0.9},
        {"temperature": 1.0, "seed": 4, "presence_penalty": 0.7},
        {"logprobs": 3},
        {"logit_bias": {4: 3.0}},
        {"temperature": 1.0, "seed": 9, "min_p": 0.2},
        {"extra_args": {"scripted_gap": 8}},
        {"temperature": 1.0, "seed": 4, "extra_args": {"scripted_sharpness": 0.4}},
    ],
)
def test_every_kind_of_sampling_gives_what_a_step_without_recording_gives(
    driver, make_driver, params
):
    plain = make_driver(groups=2, processors=LogitsRoster(SCRIPTED_PROCESSORS))
    for either in (driver, plain):
        either.add(0, PROMPT, max_tokens=40, **params)
        either.add(1, PROMPT[3:], max_tokens=40)
    mates: tuple[dict[int, list[int]], ...] = ({0: [], 1: []}, {0: [], 1: []})
    for either, found in zip((driver, plain), mates, strict=True):
        driver_step(either, {0: len(PROMPT), 1: len(PROMPT) - 3}, found)
        for _ in range(12):
            driver_step(either, {0: 1, 1: 1}, found)
    assert mates[0] == mates[1]
    assert replays(driver) == 12


def test_only_rows_that_a_processor_may_change_are_chosen_outside_the_recording(driver):
    chosen = []
    choose = driver.runner._recordings.choose
    driver.runner._recordings.choose = lambda rows: chosen.append(rows) or choose(rows)
    for extra, recorded in ({"scripted_gap": 3}, 0), ({"scripted_sharpness": 3.0}, 6):
        chosen.clear()
        driver.add(0, PROMPT, max_tokens=40, extra_args=extra)  # greedy
        driver.step({0: len(PROMPT)})
        for _ in range(6):
            driver.step({0: 1})
        driver.free(0)
        driver.step({})
        assert len(chosen) == recorded
    assert replays(driver) == 12


def test_two_steps_in_flight_need_no_look_from_the_host(driver):
    driver.add(0, PROMPT)
    pending = [driver.start({0: len(PROMPT)}), *(driver.start({0: 1}) for _ in range(8))]
    tokens = [token for step in pending for token in step.result().token_ids[0]]
    # On a CPU results share the recording's memory, so only the last of two in flight is sure.
    assert tokens[0] == driver.model.greedy(PROMPT, 1)[0]
    assert tokens[-1] == driver.model.greedy(PROMPT, 9)[-1]


def test_a_row_with_a_fault_fails_alone(driver):
    driver.add(0, PROMPT)
    driver.add(1, [7, 30])
    assert not driver.step({0: len(PROMPT), 1: 1}).failed
    result = driver.step({0: 1, 1: 1})
    assert list(result.failed) == [1]
    assert result.token_ids[0] == driver.model.greedy(PROMPT, 2)[1:]


def test_prompt_logprobs_go_without_a_recording(driver):
    driver.add(0, PROMPT, prompt_logprobs=2)
    driver.step({0: len(PROMPT) - 1})
    driver.step({0: 1})
    assert replays(driver) == 0
    driver.step({0: 1})
    assert replays(driver) == 1


@pytest.mark.parametrize(
    ("counts", "replayed"), [({0: 1, 1: 1}, 1), ({0: 1, 1: 1, 2: 1}, 1), ({0: 1, 1: 1, 2: 3}, 0)]
)
def test_kernels_are_told_on_the_device_what_all_rows_share(driver, counts, replayed):
    for slot in counts:
        driver.add(slot, PROMPT)
    driver.step({slot: len(PROMPT) - (counts[slot] > 1) * counts[slot] for slot in counts})
    kernels = [group.kernel for group in driver.runner._attention]
    for lengths in ([2, 1], [], [0, 2]):
        before = replays(driver)
        for kernel in kernels:
            kernel.shared.clear()
        plan = driver.plan(counts)
        counts = dict.fromkeys(counts, 1)
        plan.common_prefix = lengths
        driver.runner.execute(plan).sample(LateInputs(plan.step_id))
        assert replays(driver) - before == replayed
        replayed = 1
        for kernel, blocks in zip(kernels, lengths or [0, 0], strict=True):
            assert kernel.shared == [blocks * BLOCK] * 2, "one of two layers was told otherwise"
