"""Integrity of the scheduler's books. Every count must be explained by somebody who holds it."""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.scheduler.books import Books
from pegboard.scheduler.request import Request, Status

__all__ = ["audit"]


def audit(books: Books) -> None:
    """Raise `AssertionError` naming what is off."""
    _check_rooms(books)
    for request in books.requests.values():
        _check_lengths(request)
        _check_holdings(request, books.kv.prefix_match_unit)
    _check_in_flight(books)
    books.families.check()
    books.kinship.check(books.running)
    books.slots.check([request.slot for request in books.running])
    books.kv.check(
        requests=[request.kv for request in books.requests.values()],
        forks=[*books.families.forks(), *books.transfers.forks()],
        loose=[
            *(block for record in books.in_flight.values() for block in record.loose),
            *books.transfers.blocks(),
        ],
    )


def _check_rooms(books: Books) -> None:
    """Each live request is in the one room of its status."""
    rooms: dict[Status, Sequence[Request]] = {
        Status.WAITING: list(books.waiting),
        Status.RUNNING: books.running,
        Status.PARKED: list(books.families.parked()),
        Status.LOADING: list(books.transfers.loading()),
    }
    inside = [request for room in rooms.values() for request in room]
    assert len(inside) == len(set(inside)), "a request is in two rooms"
    assert set(inside) == set(books.requests.values()), "the rooms do not hold the live requests"
    for status, room in rooms.items():
        for request in room:
            assert request.status is status, (
                f"{request.request_id!r} is {request.status}, not {status}"
            )


def _check_lengths(request: Request) -> None:
    name = request.request_id
    assert 0 <= request.computed <= request.planned <= request.known, f"{name!r}: lengths cross"
    assert request.planned <= request.needed, f"{name!r}: more is planned than it needs"
    assert request.placeholders >= 0, f"{name!r}: {request.placeholders} placeholders"
    assert len(request.output_ids) <= request.origin.max_tokens, f"{name!r}: too many tokens"


def _check_holdings(request: Request, unit: int) -> None:
    """Only running requests have a slot and blocks; the blocks cover what is planned."""
    name, kv = request.request_id, request.kv
    if request.status is not Status.RUNNING:
        assert request.slot == -1, f"{name!r} is {request.status} with slot {request.slot}"
        assert not any(kv.tables), f"{name!r} is {request.status} and holds blocks"
        return
    assert request.planned <= kv.capacity, f"{name!r}: too few blocks"
    assert request.room <= min(kv.capacity, request.needed), f"{name!r}: more room than blocks"
    assert kv.committed * unit <= request.computed, f"{name!r} shares what is not computed"


def _check_in_flight(books: Books) -> None:
    """Placeholders are tokens that steps in flight will sample, no more and no fewer."""
    expected = dict.fromkeys(books.requests.values(), 0)
    for record in books.in_flight.values():
        for request, samples in zip(record.requests, record.plan.samples, strict=True):
            if request in expected:
                expected[request] += samples
    for request, count in expected.items():
        assert request.placeholders == count, (
            f"{request.request_id!r} has {request.placeholders} placeholders for {count} tokens"
        )
