"""The worker half alone: what it copies, and when it no longer touches the cache."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pegboard.api.connector import KVTransferConfig, Load, Piece, TransferReport, WorkerHalfContext
from pegboard.api.kv import (
    FullAttentionSpec,
    KVCacheConfig,
    KVGroup,
    KVLayout,
    KVTensors,
    RecurrentSpec,
    StateTensor,
)
from pegboard.errors import UnsupportedError
from pegboard_connector_filesystem.messages import Orders, Save, pack
from pegboard_connector_filesystem.pages import Pages
from pegboard_connector_filesystem.pool import LOAD, SAVE, SCAN, Pool
from pegboard_connector_filesystem.worker import FilesystemWorker

BLOCKS, SIZE = 6, 4
FULL = FullAttentionSpec(2, 3, "bfloat16")
STATE = RecurrentSpec(
    (StateTensor("conv", (3, 5), "bfloat16"), StateTensor("memory", (4,), "float32"))
)
LAYOUTS = [
    KVLayout("block first", ("block", "kv", "token", "head", "dim")),
    KVLayout("keys first", ("kv", "block", "token", "head", "dim")),
    KVLayout("heads first", ("block", "kv", "head", "token", "dim")),
]
GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def storage(layout: KVLayout, device: str = "cpu") -> list[KVTensors]:
    """Two attention layers, and a state of another group."""
    draws = torch.Generator().manual_seed(1)
    shape = layout.shape(FULL, BLOCKS, SIZE)
    layers = [torch.randn(shape, generator=draws).bfloat16() for _ in range(2)]
    raw = torch.randint(0, 256, (BLOCKS, STATE.page_bytes(1) + 64), generator=draws)
    data = raw.to(torch.uint8).to(device)
    state = data[:, :30].view(torch.bfloat16).unflatten(1, (3, 5))
    return [
        *(KVTensors(f"{n}.self", 0, FULL, layout, x.to(device)) for n, x in enumerate(layers)),
        KVTensors("2.state", 1, STATE, layout, data, {"conv": state}),
    ]


def pages_of(kv: list[KVTensors], group: int, block: int) -> list[torch.Tensor]:
    return [slot.page(block).clone().cpu() for slot in kv if slot.group == group]


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        for a, b in zip(left, right, strict=True)
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
@pytest.mark.parametrize("device", ["cpu", GPU])
def test_a_block_comes_back_as_it_was_and_its_neighbours_stay(
    layout: KVLayout, device: str
) -> None:
    kv = storage(layout, device)
    pages = Pages(kv, torch.device(device))
    sizes = pages.sizes()
    assert sizes == {0: 2 * FULL.page_bytes(SIZE), 1: STATE.page_bytes(1)}
    for group in (0, 1):
        before = [pages_of(kv, group, block) for block in range(BLOCKS)]
        staged = pages.copy_out(group, 2, sizes[group])
        content = bytes(staged.content())
        assert content == b"".join(
            page.contiguous().view(torch.uint8).numpy().tobytes() for page in before[2]
        )
        buffer = pages.host_buffer(sizes[group])
        buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        pages.copy_in(group, 4, buffer, pages.mark())
        for block in range(BLOCKS):
            wanted = before[2] if block == 4 else before[block]
            assert same(pages_of(kv, group, block), wanted), f"group {group}, block {block}"


@pytest.fixture
def kv() -> list[KVTensors]:
    return storage(LAYOUTS[1])


@pytest.fixture
def worker(tmp_path: Path, kv: list[KVTensors]) -> Iterator[FilesystemWorker]:
    worker = make_worker(tmp_path)
    attach(worker, kv)
    yield worker
    worker.detach()
    worker.close()


def make_worker(tmp_path: Path, ranks: int = 1, **extra: Any) -> FilesystemWorker:
    config = KVTransferConfig(
        kv_connector="filesystem", kv_connector_extra_config={"path": str(tmp_path), **extra}
    )
    return FilesystemWorker(
        WorkerHalfContext(
            config=config,
            identity={"model": "m"},
            rank=0,
            ranks=ranks,
            connector=lambda config: None,  # type: ignore[arg-type, return-value]
        )
    )


def attach(worker: FilesystemWorker, kv: list[KVTensors]) -> Any:
    groups = (KVGroup(0, FULL, SIZE, ("0.self", "1.self")), KVGroup(1, STATE, SIZE, ("2.state",)))
    return worker.attach(kv, KVCacheConfig(groups, BLOCKS), torch.device("cpu"))


def step(worker: FilesystemWorker, **orders: Any) -> None:
    worker.start_load(pack(Orders(**orders)))
    worker.wait_save()


def wait(worker: FilesystemWorker, what: str, count: int = 1) -> list[TransferReport]:
    """Poll until so many of `what` were reported."""
    reports, found, end = list[TransferReport](), 0, time.monotonic() + 10
    while found < count:
        assert time.monotonic() < end, f"{what} was never reported"
        report = worker.poll()
        reports.append(report)
        told = (report.extra or {}).get(what) or getattr(report, what, [])
        found += len(told)
        time.sleep(0.001)
    return reports


def save(block: int, key: bytes = b"k" * 32, group: int = 0) -> Save:
    return Save(group, block, key, [])


def load(number: int, block: int, key: bytes = b"k" * 32, group: int = 0) -> Load:
    return Load(number, "r", False, SIZE, (Piece(group, 0, block, key),))


def test_a_saved_block_may_be_overwritten_at_once(
    worker: FilesystemWorker, kv: list[KVTensors]
) -> None:
    before = pages_of(kv, 0, 3)
    step(worker, saves=[save(3)])
    for slot in kv[:2]:
        slot.page(3).fill_(7)
    wait(worker, "stored")
    step(worker, loads=[load(1, 5)])
    (report,) = [r for r in wait(worker, "received") if r.received]
    assert report.failed == [] and same(pages_of(kv, 0, 5), before)


def test_a_load_of_nothing_is_over_and_failed(worker: FilesystemWorker, kv: Any) -> None:
    before = pages_of(kv, 1, 2)
    step(worker, loads=[load(1, 2, group=1)])
    (report,) = [r for r in wait(worker, "received") if r.received]
    assert [(bad.load_id, bad.group, bad.block) for bad in report.failed] == [(1, 1, 2)]
    assert same(pages_of(kv, 1, 2), before)


@pytest.mark.parametrize("how", ["dropped", "stopped", "detached", "late"])
def test_nothing_is_written_once_a_load_is_given_up(
    tmp_path: Path, kv: list[KVTensors], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    worker = make_worker(tmp_path, load_timeout=0.05 if how == "late" else 60)
    attach(worker, kv)
    step(worker, saves=[save(3)])
    wait(worker, "stored")
    go, real = threading.Event(), worker._folder.read

    def slow(*args: Any) -> None:
        real(*args)
        assert go.wait(10)

    monkeypatch.setattr(worker._folder, "read", slow)
    before = pages_of(kv, 0, 5)
    step(worker, loads=[load(1, 5)])
    if how == "dropped":
        step(worker, dropped=[1])
    elif how == "stopped":
        assert worker.drop(1) and worker.drop(77)
    elif how == "detached":
        worker.detach()
    else:
        time.sleep(0.06)
    go.set()
    (report,) = [r for r in wait(worker, "received") if r.received]
    assert len(report.failed) == 1 and same(pages_of(kv, 0, 5), before)
    worker.detach()
    worker.close()


def test_the_cache_may_go_and_come_back(worker: FilesystemWorker, kv: list[KVTensors]) -> None:
    before = pages_of(kv, 0, 3)
    step(worker, saves=[save(3)])
    worker.detach()
    other = storage(LAYOUTS[1])
    attach(worker, other)
    wait(worker, "stored")
    step(worker, loads=[load(1, 1)])
    wait(worker, "received")
    assert same(pages_of(other, 0, 1), before)


def test_the_end_waits_for_what_is_still_to_be_written(tmp_path: Path, kv: list[KVTensors]) -> None:
    worker = make_worker(tmp_path, threads=1)
    attach(worker, kv)
    step(worker, saves=[save(1 + n % 5, bytes([n]) * 32) for n in range(40)])
    worker.detach()
    worker.close()
    assert len(list(tmp_path.rglob("*.kv"))) == 40


def test_more_than_one_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="one rank"):
        make_worker(tmp_path, ranks=2)


def test_urgent_tasks_go_first_and_a_failing_task_stops_nobody() -> None:
    pool, done, go = Pool(1, "test"), list[str](), threading.Event()
    pool.submit(SAVE, lambda: done.append(str(go.wait(10))))

    def fail() -> None:
        raise RuntimeError("a fault")

    while pool._tasks.waiting:
        time.sleep(0.001)
    pool.submit(SCAN, lambda: done.append("scan"))
    pool.submit(SAVE, lambda: done.append("save 1"))
    pool.submit(SAVE, lambda: done.append("save 2"))
    pool.submit(LOAD, fail)
    pool.submit(LOAD, lambda: done.append("load"))
    go.set()
    assert pool.drain(10)
    assert done == ["True", "load", "save 1", "save 2", "scan"]
    assert pool.close() == 0


def test_draining_gives_up_in_time() -> None:
    pool, go = Pool(1, "test"), threading.Event()
    pool.submit(SAVE, lambda: go.wait(10) and None)
    pool.submit(SAVE, lambda: None)
    assert not pool.drain(0.05)
    threading.Timer(0.05, go.set).start()
    assert pool.close() == 1
