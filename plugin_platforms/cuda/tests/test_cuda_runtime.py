"""The CUDA platform's runtime: its probe, and its bookkeeping over an invented driver."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.api.platform import DeviceRuntime
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_platform_cuda import driver, pegboard_platforms, runtime
from pegboard_platform_cuda.runtime import CudaRuntime, probe

GIB = 1 << 30


class FakeCuda:
    """A GPU of 64 GiB by the names of `torch.cuda`; `taken` is what libraries hold beside torch."""

    def __init__(self) -> None:
        self.count, self.capability = 2, (9, 0)
        self.reserved = self.allocated = self.peak = self.taken = 0
        self.log: list[str] = []
        self.capture_error: Exception | None = None

    def device_count(self) -> int:
        return self.count

    def set_device(self, index: int) -> None:
        self.log.append(f"device {index}")

    def get_device_name(self, index: int) -> str:
        return "Invented 64"

    def get_device_capability(self, index: int) -> tuple[int, int]:
        return self.capability

    def get_device_properties(self, index: int) -> Any:
        return types.SimpleNamespace(
            name="Invented 64",
            major=9,
            minor=0,
            multi_processor_count=132,
            total_memory=64 * GIB,
            L2_cache_size=60 << 20,
        )

    def mem_get_info(self, index: int) -> tuple[int, int]:
        return 64 * GIB - self.reserved - self.taken, 64 * GIB

    def memory_reserved(self, index: int) -> int:
        return self.reserved

    def memory_allocated(self, index: int) -> int:
        return self.allocated

    def max_memory_reserved(self, index: int) -> int:
        return self.peak

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peak = self.reserved

    def empty_cache(self) -> None:
        self.reserved = self.allocated

    def synchronize(self, index: int) -> None:
        self.log.append("synchronize")

    def graph_pool_handle(self) -> object:
        return "the pool"

    def Stream(self, index: int) -> str:  # noqa: N802
        return f"stream of {index}"

    def current_stream(self, index: int) -> str:
        return "current"

    def Event(self, *, blocking: bool) -> Any:  # noqa: N802
        return types.SimpleNamespace(
            record=lambda stream: self.log.append(f"event on {stream}"),
            synchronize=lambda: self.log.append(f"wait {blocking}"),
        )

    def CUDAGraph(self) -> Any:  # noqa: N802
        return types.SimpleNamespace(replay=lambda: self.log.append("replay"))

    @contextlib.contextmanager
    def graph(self, graph: Any, **how: Any) -> Iterator[None]:
        self.log.append(f"capture into {how['pool']}")
        try:
            yield
        finally:
            if self.capture_error is not None:
                raise self.capture_error


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name in (name for name in dir(fake) if not name.startswith("_")):
        if callable(getattr(fake, name)):
            monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_the_runtime_says_what_the_device_is(cuda: FakeCuda) -> None:
    (platform,) = pegboard_platforms()
    opened: DeviceRuntime = platform.runtime.load()(1)
    assert opened.device.torch_device() == torch.device("cuda", 1)
    assert opened.memory.total_bytes() == 64 * GIB
    assert opened.memory.cache_limit() is None
    facts = opened.facts()
    assert facts["device"] == "Invented 64" and facts["capability"] == (9, 0)
    assert facts["multiprocessors"] == 132 and facts["l2_bytes"] == 60 << 20
    assert "device 1" in cuda.log


def test_bfloat16_is_preferred_from_capability_eight_on(cuda: FakeCuda) -> None:
    device = CudaRuntime().device
    assert device.dtypes() == ("bfloat16", "float16", "float32")
    cuda.capability = (7, 5)
    assert device.dtypes() == ("float16", "float32")


def test_an_index_beyond_the_last_gpu_is_an_error_that_says_which_there_are(cuda: FakeCuda) -> None:
    with pytest.raises(ConfigError, match=r"device index 2 is not allowed: .* has 0 to 1"):
        CudaRuntime(2)
    cuda.count = 0
    with pytest.raises(ConfigError, match="none, since no GPU is usable"):
        CudaRuntime(0)


def test_memory_that_the_allocator_holds_unused_is_free(cuda: FakeCuda) -> None:
    memory = CudaRuntime().memory
    cuda.reserved, cuda.allocated, cuda.taken = 5 * GIB, 2 * GIB, GIB
    assert memory.free_bytes() == (64 - 5 - 1 + 3) * GIB


def test_a_peak_counts_what_was_taken_from_the_driver_and_a_margin(cuda: FakeCuda) -> None:
    cuda.reserved, cuda.allocated = 9 * GIB, 8 * GIB  # the unused one is given back first

    def work() -> None:
        cuda.peak = 12 * GIB
        cuda.reserved, cuda.taken = 11 * GIB, GIB // 4

    found = CudaRuntime().memory.peak_bytes(work)
    assert found == 4 * GIB + GIB // 4 + GIB // 2


def test_a_mark_is_an_event_on_the_current_stream(cuda: FakeCuda) -> None:
    execution = CudaRuntime().execution
    mark = execution.mark()
    assert cuda.log[-1] == "event on current"
    mark.wait()
    assert cuda.log[-1] == "wait False"
    execution.synchronize()
    assert cuda.log[-1] == "synchronize"


def test_recordings_share_one_pool_and_can_be_replayed(cuda: FakeCuda) -> None:
    execution = CudaRuntime().execution
    assert execution.asynchronous and execution.records
    recordings = [execution.record(lambda: cuda.log.append("work")) for _ in range(2)]
    recordings[0].replay()
    assert cuda.log[-5:] == ["capture into the pool", "work"] * 2 + ["replay"]


def test_a_failed_recording_names_the_first_cause(cuda: FakeCuda) -> None:
    cuda.capture_error = RuntimeError("capture was invalidated")

    def work() -> None:
        raise RuntimeError("this call waits for the device\nand a long trace")

    with pytest.raises(UnsupportedError, match=r"recorded: this call waits for the device$"):
        CudaRuntime().execution.record(work)
    with pytest.raises(UnsupportedError, match="capture was invalidated"):
        CudaRuntime().execution.record(lambda: None)


def test_running_out_of_memory_in_a_recording_stays_what_it_is(cuda: FakeCuda) -> None:
    def work() -> None:
        raise torch.OutOfMemoryError("out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        CudaRuntime().execution.record(work)


def test_no_driver_is_the_reason_before_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "driver_present", lambda: False)
    monkeypatch.setattr(runtime, "_missing_in_torch", lambda: pytest.fail("torch was asked"))
    assert not probe().present
    assert probe().reason == "no NVIDIA driver found"


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_the_reason(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setattr(runtime, "driver_present", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert probe().reason == f"CUDA_VISIBLE_DEVICES={value!r} hides every GPU"


@pytest.mark.parametrize("package", ["torch", "triton"])
def test_a_missing_package_is_the_reason(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    find = runtime.importlib.util.find_spec
    monkeypatch.setattr(
        runtime.importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    assert probe().reason == f"{package} is not installed"


def test_a_torch_without_cuda_and_one_without_a_gpu_are_told_apart(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "driver_present", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert probe().reason.endswith("was built without CUDA")
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def unusable() -> bool:
        runtime.warnings.warn("the driver is too old\nand more", UserWarning, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", unusable)
    assert probe().reason.endswith("finds no usable GPU: the driver is too old")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    answer = probe()
    assert answer.present and answer.reason == "2 GPUs, first Invented 64"


def test_a_driver_is_seen_by_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(driver, "_LIBRARY", "libabsent.so.1")
    device = tmp_path / "nvidia0"
    assert not driver.driver_present([str(device)])
    assert driver.driver_version() is None
    device.touch()
    assert driver.driver_present([str(device)])


def test_a_drivers_version_is_read_from_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(number: Any) -> int:
        number._obj.value = 12080
        return 0

    library = types.SimpleNamespace(cuDriverGetVersion=answer)
    monkeypatch.setattr(driver, "_library", lambda: library)
    assert driver.driver_version() == "12.8"


def test_hooks_and_probe_import_no_torch_where_there_is_no_driver() -> None:
    code = (
        "import sys, pegboard_platform_cuda as p; "
        "from pegboard_platform_cuda import runtime; runtime.driver_present = lambda: False; "
        "p.pegboard_platforms()[0].probe.load()(); "
        "sys.exit('torch' in sys.modules or 'triton' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.gpu
def test_a_recording_replays_on_what_its_memory_holds_by_then() -> None:
    opened = CudaRuntime()
    x = torch.ones(4, device=opened.device.torch_device())
    y = torch.zeros_like(x)

    def work() -> None:
        y.copy_(x * 2)

    work()
    recording = opened.execution.record(work)
    x.fill_(3)
    recording.replay()
    opened.execution.mark().wait()
    assert y.tolist() == [6.0] * 4


@pytest.mark.gpu
def test_work_that_waits_for_the_device_cannot_be_recorded() -> None:
    opened = CudaRuntime()
    x = torch.ones(4, device=opened.device.torch_device())

    def work() -> None:
        x.sum().item()

    with pytest.raises(UnsupportedError):
        opened.execution.record(work)
    assert (x + 1).sum().item() == 8
