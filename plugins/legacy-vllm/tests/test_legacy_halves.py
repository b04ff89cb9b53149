"""Each half by itself, with a connector that does what a test wants."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.connector import (
    Allocated,
    Finished,
    Keep,
    KVTransferConfig,
    Later,
    Load,
    Match,
    Now,
    Pending,
    Piece,
    SchedulerHalfContext,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
    WorkerHalfContext,
)
from pegboard.api.kv import FullAttentionSpec, KVCacheConfig, KVGroup, KVLayout, KVTensors
from pegboard.api.params import SamplingParams
from pegboard.api.views import BlocksView, RequestView
from pegboard.errors import UnsupportedError
from pegboard_legacy_vllm.messages import LoadNote, StepNote
from pegboard_legacy_vllm.scheduler import half as scheduler_half
from pegboard_legacy_vllm.worker import half as worker_half

SPEC = FullAttentionSpec(2, 8, "float32")
GROUP = KVGroup(0, SPEC, 16, ("3.self",))
LAYOUT = KVLayout("kv-block-token-head-dim", ("kv", "block", "token", "head", "dim"))
WISH = """
from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import *
from shelf_kv.connector import ShelfConnector


class WishConnector(ShelfConnector):
    answer, ending, sent, told = (0, False), (False, None), None, []

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self.answer

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self.told.append((request.request_id, blocks.get_block_ids(), num_external_tokens))
        super().update_state_after_alloc(request, blocks, 0)

    def request_finished(self, request, block_ids):
        self.told.append(block_ids)
        return self.ending

    def update_connector_output(self, output):
        self.told.append((output.finished_sending, output.finished_recving))

    def take_events(self):
        return [BlockStored([b"a", b"b"], medium="disk"), BlockRemoved([1]), BlockRemoved([b"a"])]

    def get_finished(self, finished_req_ids):
        return self.sent, super().get_finished(finished_req_ids)[1]
"""


def config(folder: Path, **extra: Any) -> KVTransferConfig:
    extra = {"path": str(folder / "kv"), **extra}
    return KVTransferConfig(kv_connector="wish", kv_connector_extra_config=extra)


def context(folder: Path) -> SchedulerHalfContext:
    def unused(*_: Any) -> Any:
        raise AssertionError("not called")

    return SchedulerHalfContext(config(folder), (GROUP,), 16, 16, {}, (None,), unused, unused)


@pytest.fixture
def wish(packages: Any) -> Any:
    """The class of the connector, whose attributes a test sets."""
    packages.add_shelf()
    (packages.folder / "shelf_kv" / "wish.py").write_text(WISH)
    return lambda: sys.modules["shelf_kv.wish"].WishConnector


@pytest.fixture
def planner(wish: Any, tmp_path: Path) -> Any:
    return scheduler_half.shelf_kv.wish.WishConnector(context(tmp_path))


@pytest.fixture
def mover(wish: Any, tmp_path: Path) -> Any:
    def build(**extra: Any) -> Any:
        unused: Any = None
        ctx = WorkerHalfContext(config(tmp_path, **extra), {}, 0, 1, unused)
        made = worker_half.shelf_kv.wish.WishConnector(ctx)
        kv = KVTensors("3.self", 0, SPEC, LAYOUT, torch.ones(2, 8, 16, 2, 8))
        made.attach([kv], KVCacheConfig((GROUP,), 8), torch.device("cpu"))
        return made

    return build


def request(name: str = "r", **more: Any) -> RequestView:
    hashes = [bytes([n]) * 4 for n in range(3)]
    values: dict[str, Any] = {"media": (), "computed": 0, **more}
    return RequestView(
        request_id=name, prompt_ids=list(range(50)), output_ids=[], block_hashes=hashes,
        priority=0, arrival=0.0, params=SamplingParams(), cache_salt=None, adapter=None,
        kv_transfer=None, **values,
    )  # fmt: skip


def view(**values: Any) -> StepView:
    empty = ("request_ids", "starts", "counts", "new_blocks", "admitted", "loads", "filled")
    rest = ("preempted", "finished", "dropped")
    return StepView(**{"step_id": 1, **dict.fromkeys((*empty, *rest), ()), **values})


def load(now: bool) -> Load:
    return Load(7, "r", now, 32, (Piece(0, 0, 1, b"a"), Piece(0, 1, 2, b"b")))


@pytest.mark.parametrize(
    ("answer", "ours"),
    [
        ((32, True), Later(32)),
        ((32, False), Now(32)),
        ((0, True), Now(0)),
        ((-16, False), Now(0)),
        ((None, False), Pending()),
    ],
)
def test_answers_are_those_of_the_connector(
    planner: Any, wish: Any, answer: Any, ours: Any
) -> None:
    wish().answer = answer
    assert planner.match(Match(request(), 0, 48)) == ours


def test_the_connector_hears_of_blocks_with_and_without_a_load(planner: Any, wish: Any) -> None:
    wish().answer, wish().told = (16, True), []
    planner.match(Match(request(), 16, 48))
    planner.allocated(Allocated(request(), BlocksView(((1, 2),)), load(False)))
    assert wish().told == [("r", ([1, 2],), 16)]


def test_a_row_that_it_never_saw_admitted_is_not_shown(planner: Any) -> None:
    rows = {"request_ids": ("lost",), "starts": (16,), "counts": (1,)}
    order = planner.step(view(**rows, new_blocks=(BlocksView(((),)),)))
    assert StepNote.read(order.metadata).rows


def test_a_load_that_does_not_begin_ends_its_use(planner: Any, wish: Any) -> None:
    wish().answer = (32, True)
    planner.match(Match(request(), 0, 48))
    planner.allocated(Allocated(request(), BlocksView(((1, 2),)), load(False)))
    planner.report(TransferReport(stopped=[7]))
    assert planner.step(view(dropped=(7,))) == StepOrder()
    assert planner.match(Match(request(), 0, 48)) == Now(0)


def test_blocks_are_kept_until_they_are_sent(planner: Any, mover: Any, wish: Any) -> None:
    wish().ending, wish().told = (True, {"peer": 1}), []
    kept = planner.finished(Finished(request(), BlocksView(((0, 4, 5),)), "stop", 9))
    assert isinstance(kept, Keep) and kept.params == {"peer": 1}
    worker = mover()
    worker.start_load(planner.step(view(finished=("r",))).metadata)
    assert worker.poll().sent == []
    wish().sent = {"r", "somebody else"}
    report = worker.poll()
    assert report.sent == [9]
    planner.report(report)
    assert wish().told == [[4, 5], ({"r"}, None)]


def test_events_with_bytes_for_hashes_are_passed_on(planner: Any) -> None:
    assert planner.events() == [
        StoreEvent("stored", 0, (b"a", b"b"), "disk"),
        StoreEvent("removed", 0, (b"a",), None),
    ]


def metadata(worker: Any, load: LoadNote, *saves: tuple[str, int]) -> Any:
    made = sys.modules["shelf_kv.connector"].ShelfMetadata
    loads = [("r", "absent", block) for block in load.blocks]
    return StepNote(pickle.dumps(made(loads, list(saves))), True, (load,)).plain()


def test_a_step_with_a_block_that_could_not_be_filled_saves_nothing(
    mover: Any, tmp_path: Path
) -> None:
    worker = mover()
    for blocks, saved in (((2, 3), []), ((), ["new.pt"])):
        worker.start_load(metadata(worker, LoadNote(7, "r", True, blocks, True), ("new", 5)))
        worker.wait_save()
        failed = worker.poll().failed
        assert [(bad.load_id, bad.block) for bad in failed] == [(7, b) for b in blocks]
        assert [path.name for path in (tmp_path / "kv").iterdir()] == saved


def test_a_load_between_steps_is_over_when_the_connector_says_so(mover: Any) -> None:
    worker = mover(later=True)
    assert worker.drop(7) is True
    worker.start_load(metadata(worker, LoadNote(7, "r", False, (2,), True)))
    assert worker.drop(7) is False and worker.drop(8) is True
    report = worker.poll()
    assert report.received == [7] and [bad.block for bad in report.failed] == [2]
    assert worker.drop(7) is True


@pytest.mark.parametrize("now", [True, False])
def test_a_load_that_the_connector_was_not_told_of_has_failed(mover: Any, now: bool) -> None:
    worker = mover()
    lost = LoadNote(7, "lost", now, (2,), False)
    empty = sys.modules["shelf_kv.connector"].ShelfMetadata()
    worker.start_load(StepNote(pickle.dumps(empty), False, (lost,)).plain())
    report = worker.poll()
    assert [bad.block for bad in report.failed] == [2]
    assert report.received == ([] if now else [7])


def test_an_engine_of_several_ranks_is_refused(wish: Any, tmp_path: Path) -> None:
    two = attrs.evolve(context(tmp_path), handshakes=(None, None))
    with pytest.raises(UnsupportedError, match="serves engines of one rank here, not 2"):
        scheduler_half.shelf_kv.wish.WishConnector(two)
