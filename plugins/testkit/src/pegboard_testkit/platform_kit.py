"""Conformance kit for the surface *platform*: devices.

A test file of a platform subclasses `PlatformKit`, names the descriptor, and gets the tests below::

    class TestMyPlatform(PlatformKit):
        platform = MY_PLATFORM

Where the probe says that there is no device, the tests that need one are skipped, with a reason
that begins with ``missing hardware``; set `required` where there must be one.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard import LLM, SamplingParams
from pegboard.api.platform import DeviceRuntime, Platform, ProbeResult
from pegboard.errors import UnsupportedError
from pegboard.testing.boards import board_with
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.near_tie import assert_same, compare
from pegboard_testkit.own_settings import OwnSettings

__all__ = ["PlatformKit"]

DTYPES = ("float32", "bfloat16", "float16")


class PlatformKit(OwnSettings):
    """Tests of a platform; subclass it in a test file under a name that begins with ``Test``.

    `platform` must be given; the other attributes may be changed.
    """

    platform: Platform
    """The descriptor."""
    required = False
    """There must be a device: nothing is skipped."""
    attention_backend: str | None = None
    """Backend of the whole engine; None: the best installed one."""
    probe_seconds = 5.0
    """Longest time of a probe."""
    gap = 1e-3
    """Near-tie rule of the whole engine, see `ModelKit`."""

    @pytest.fixture(scope="class")
    @classmethod
    def runtime(cls) -> DeviceRuntime:
        """Device 0."""
        answer = cls.platform.probe.load()()
        if not answer.present and not cls.required:
            pytest.skip(f"missing hardware: {cls.platform.name}: {answer.reason}")
        assert answer.present, answer.reason
        return cls()._opened()

    def _opened(self) -> DeviceRuntime:
        own = self.handed("platform", self.platform.name)["settings"]
        more = (own,) if self.platform.takes_settings else ()
        runtime: DeviceRuntime = self.platform.runtime.load()(0, *more)
        return runtime

    def test_the_probe_answers_quickly_and_says_why(self) -> None:
        probe = self.platform.probe.load()
        start = time.perf_counter()
        answer = probe()
        seconds = time.perf_counter() - start
        assert isinstance(answer, ProbeResult), f"the probe gave a {type(answer).__name__}"
        assert answer.reason, "the probe gives no reason"
        assert seconds < self.probe_seconds, f"the probe took {seconds:.1f} s"
        assert probe() == answer, "a second probe says something else"

    def test_the_device_names_its_dtypes_and_holds_them(self, runtime: DeviceRuntime) -> None:
        dtypes, device = runtime.device.dtypes(), runtime.device.torch_device()
        assert dtypes, "the device has no dtype"
        assert set(dtypes) <= set(DTYPES), f"dtypes() gives {dtypes}; known are {DTYPES}"
        assert len(set(dtypes)) == len(dtypes), f"dtypes() names one twice: {dtypes}"
        assert isinstance(device, torch.device), f"torch_device() gives {device!r}"
        for name in dtypes:
            held = torch.ones(3, 3, dtype=getattr(torch, name), device=device)
            assert (held @ held).float().sum().item() == 27, f"3 times 3 is wrong in {name}"

    def test_memory_is_counted(self, runtime: DeviceRuntime) -> None:
        memory = runtime.memory
        total, free, limit = memory.total_bytes(), memory.free_bytes(), memory.cache_limit()
        assert total > 0, f"total_bytes() is {total}"
        assert 0 <= free <= total, f"free_bytes() is {free} of {total}"
        assert limit is None or 0 < limit <= total, f"cache_limit() is {limit} of {total}"

    def test_a_peak_holds_at_least_what_was_taken(self, runtime: DeviceRuntime) -> None:
        device, calls = runtime.device.torch_device(), list[int]()

        def work() -> None:
            calls.append(torch.ones(1 << 20, device=device).numel())

        peak = runtime.memory.peak_bytes(work)
        if peak is None:
            assert not calls, "peak_bytes() called the work, but measured nothing"
        else:
            assert len(calls) == 1, f"peak_bytes() called the work {len(calls)} times"
            assert peak >= 4 << 20, f"4 MiB were taken, the peak is {peak}"

    def test_a_mark_is_behind_what_was_submitted(self, runtime: DeviceRuntime) -> None:
        execution, device = runtime.execution, runtime.device.torch_device()
        values = torch.zeros(256, 256, device=device)
        for _ in range(20):
            values += 1
        landing = values.to("cpu", non_blocking=True)
        execution.mark().wait()
        assert landing.unique().tolist() == [20.0]
        execution.synchronize()
        assert isinstance(execution.asynchronous, bool)

    def test_recorded_work_reads_memory_anew_or_is_refused(self, runtime: DeviceRuntime) -> None:
        execution, device = runtime.execution, runtime.device.torch_device()
        given, made = torch.zeros(8, device=device), torch.zeros(8, device=device)

        def work() -> None:
            made.copy_(given * 2)

        if not execution.records:
            with pytest.raises(UnsupportedError):
                execution.record(work)
            return
        work()  # once before, as the engine does
        recording = execution.record(work)
        for value in (3.0, 5.0):
            given.fill_(value)
            recording.replay()
            execution.synchronize()
            assert made.tolist() == [2 * value] * 8

    def test_facts_are_plain_and_name_the_platform(self, runtime: DeviceRuntime) -> None:
        facts = runtime.facts()
        json.dumps(facts)
        assert facts.get("platform") == self.platform.name, (
            f"facts()['platform'] is {facts.get('platform')!r}, not {self.platform.name!r}"
        )

    @pytest.mark.usefixtures("runtime")
    def test_a_whole_engine_answers_as_on_the_null_platform(self, tmp_path: Path) -> None:
        model = write_tiny_model(tmp_path / "model", seed=5)
        ours, null = self._greedy(model, self.platform.name), self._greedy(model, "null")
        for name, answer in (("own", ours), ("null", null)):
            assert all(len(tokens) == 12 for tokens, _ in answer), name
        for (tokens, scores), (reference, wanted) in zip(ours, null, strict=True):
            same = 0
            while same < 12 and tokens[same] == reference[same]:
                same += 1
            assert_same(
                compare(wanted[:same], wanted[:same], scores[:same]), gap=self.gap, logprob=self.gap
            )
            if same < 12:
                difference = abs(scores[same] - wanted[same])
                assert difference <= self.gap, f"token {same} differs, and by {difference} nats"

    def _greedy(self, model: Path, platform: str) -> list[tuple[list[int], list[float]]]:
        """Tokens and their log-probabilities."""
        options: dict[str, Any] = {"platform": platform, "dtype": "float32", "max_model_len": 64}
        if platform == self.platform.name:
            options["attention_backend"] = self.attention_backend
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
        board = board_with("platform", self.platform, settings=self.settings)
        prompts = [[5, 6, 7], list(range(10, 40)), [90]]
        with LLM(str(model), board=board, num_gpu_blocks_override=32, **options) as llm:
            assert llm.engine.core.executor.facts()["platform"] == platform
            outputs = llm.generate(prompts, params, use_tqdm=False)
        found = []
        for output in outputs:
            made = output.outputs[0]
            assert made.logprobs is not None
            pairs = zip(made.logprobs, made.token_ids, strict=True)
            found.append((made.token_ids, [entry[token].logprob for entry, token in pairs]))
        return found
