"""QUEUED, SCHEDULED and PREEMPTED reach the outputs, each once, in order, with times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pegboard.api.params import SamplingParams
from pegboard.api.views import EngineOutput, RequestEvent
from pegboard.testing.toy import ToyExecutor
from pegboard.testing.toy_engine import ToyEngine, toy_request


def events_of(toy: ToyEngine) -> dict[str, list[RequestEvent]]:
    """Run to the end; all events by request."""
    events: dict[str, list[RequestEvent]] = defaultdict(list)
    last = 0.0
    while toy.scheduler.has_work():
        for output in toy.step():
            assert output.time >= last
            assert all(event.time <= output.time for event in output.events)
            last = output.time
            events[output.request_id] += output.events
    return events


def kinds(events: Sequence[RequestEvent]) -> list[str]:
    assert [event.time for event in events] == sorted(event.time for event in events)
    return [event.kind for event in events]


def test_a_request_is_queued_once_and_scheduled_once() -> None:
    toy = ToyEngine(max_num_seqs=1)
    for name in "ab":
        toy.add(toy_request(name, [1, 2, 3], 4))
    events = events_of(toy)
    assert kinds(events["a"]) == kinds(events["b"]) == ["QUEUED", "SCHEDULED"]
    assert events["a"][0].time <= events["b"][0].time <= events["a"][1].time < events["b"][1].time


def test_each_preemption_is_told_and_each_resumption() -> None:
    toy = ToyEngine(9, block_size=8, watermark=0.0, enable_prefix_caching=False)
    for number, name in enumerate("abc"):
        toy.add(toy_request(name, [number] * 16, 24))
    events = events_of(toy)
    told = [kind for name in events for kind in kinds(events[name])]
    preemptions = toy.scheduler.stats().preemptions
    assert preemptions > 0
    assert told.count("PREEMPTED") == preemptions
    assert told.count("SCHEDULED") == preemptions + 3
    assert told.count("QUEUED") == 3


def test_children_that_wait_for_their_parent_are_queued_from_the_beginning() -> None:
    toy = ToyEngine(max_num_batched_tokens=16)
    params = SamplingParams(n=2)
    toy.add(toy_request("p", list(range(60)), 2, params=params))
    toy.add(toy_request("c", list(range(60)), 2, params=params, parent="p", child=1))
    events = events_of(toy)
    assert kinds(events["c"]) == ["QUEUED", "SCHEDULED"]
    assert events["c"][1].time > events["p"][1].time


def test_aborts_and_failures_bring_what_was_not_told_yet() -> None:
    toy = ToyEngine(executor=ToyExecutor(poison=66))
    toy.add(toy_request("bad", [1, 66], 4))
    toy.add(toy_request("gone", [1, 2], 4))
    (aborted,) = toy.scheduler.abort(["gone"])
    assert kinds(aborted.events) == ["QUEUED"] and aborted.time > 0
    failed: list[EngineOutput] = toy.step()
    assert [kinds(output.events) for output in failed] == [["QUEUED", "SCHEDULED"]]
    assert failed[0].finish_reason == "error"


def test_what_an_output_told_does_not_change_when_the_request_goes_on() -> None:
    toy = ToyEngine(9, block_size=8, watermark=0.0, enable_prefix_caching=False)
    for number, name in enumerate("abc"):
        toy.add(toy_request(name, [number] * 16, 24))
    outputs, told = [], []
    while toy.scheduler.has_work():
        new = toy.step()
        outputs += new
        told += [kinds(output.events) for output in new]
    assert toy.scheduler.stats().preemptions > 0
    assert [kinds(output.events) for output in outputs] == told


def test_outputs_of_a_step_are_in_the_order_of_time_beside_a_failed_row() -> None:
    toy = ToyEngine(executor=ToyExecutor(poison=66))
    toy.add(toy_request("bad", [1, 66], 4))
    toy.add(toy_request("good", [1, 2], 4))
    times = [output.time for output in toy.step()]
    assert len(times) == 2 and times == sorted(times)
