"""Beginnings that come from outside: what they consist of, what a bad block leaves of them."""

from __future__ import annotations

import random

import pytest

from pegboard.api.kv import KVCacheConfig
from pegboard.kv import Allocation, KVManager, form_groups
from pegboard.kv.values import KVRequest
from pegboard.testing.toy import ToyExecutor
from pegboard.testing.toy_engine import toy_request
from pegboard.testing.toy_kinds import TOY_KINDS

SERVED = [name for name in TOY_KINDS if "cross" not in name and "encoder" not in name]
SERVED = [name for name in SERVED if name not in ("all", "state without copies")]
LENGTH = 200


def make_books(kinds: str, blocks: int = 400, caching: bool = True) -> KVManager:
    groups = form_groups(ToyExecutor(specs=TOY_KINDS[kinds]).kv_slots(), 8)
    return KVManager(KVCacheConfig(groups, blocks), caching=caching, budget=64)


def open_request(books: KVManager, length: int = LENGTH) -> KVRequest:
    return books.open(toy_request("r", [n % 90 for n in range(length)]))


def needed(kinds: str, tokens: int) -> set[tuple[int, bytes]]:
    """Group and key of every block of a beginning, nothing being here already."""
    books = make_books(kinds)
    begun = books.outside.begin(open_request(books), tokens, 0)
    assert begun is not None
    return {(piece.group, piece.key) for piece in begun[1]}


@pytest.mark.parametrize("kinds", SERVED)
def test_the_longest_beginning_is_the_longest_whose_blocks_are_all_there(kinds: str) -> None:
    books = make_books(kinds)
    outside, request = books.outside, open_request(books)
    hashes, draws = outside.hashes(request, LENGTH), random.Random(3)
    borders = range(outside.border, LENGTH + 1, outside.border)
    wanted = {tokens: needed(kinds, tokens) for tokens in borders}
    every = sorted(set().union(*wanted.values()))
    lengths = set()
    for _ in range(60):
        store = set(every) - set(draws.sample(every, draws.randrange(0, 4)))
        limit = draws.randrange(0, LENGTH + 1)
        best = max((t for t in borders if t <= limit and wanted[t] <= store), default=0)
        assert outside.longest(hashes, limit, lambda g, k, s=store: (g, k) in s) == best
        lengths.add(best)
    assert len(lengths) > 3


@pytest.mark.parametrize("kinds", SERVED)
def test_a_bad_block_leaves_the_longest_beginning_that_does_without_it(kinds: str) -> None:
    books = make_books(kinds)
    outside, request = books.outside, open_request(books)
    tokens = LENGTH // outside.border * outside.border
    begun = outside.begin(request, tokens, 0)
    assert begun is not None
    fork, pieces = begun
    for bad in pieces:
        kept = outside.keep(fork.blocks, tokens, {(bad.group, bad.block)})
        if kept is None:
            continue
        assert kept.tokens < tokens
        held = {(group, b.id) for group, table in enumerate(kept.blocks) for b in table}
        assert (bad.group, bad.block) not in held
        books.release_fork(kept)
    books.release_fork(fork)
    assert books.pool.available == books.pool.total


def test_only_the_good_blocks_of_a_load_can_be_found_afterwards() -> None:
    books = make_books("full")
    request = open_request(books, 100)
    begun = books.outside.begin(request, 80, 0)
    assert begun is not None
    fork, pieces = begun
    bad = pieces[4]
    assert books.match(request, 99).tokens == 0, "found before it was loaded"
    books.outside.file(request, pieces, {(bad.group, bad.block)})
    assert books.match(request, 99).tokens == 32
    books.release_fork(fork)


def test_what_the_own_cache_has_is_not_loaded_again() -> None:
    books = make_books("full")
    first = open_request(books, 100)
    assert books.allocate(Allocation(first, 0, 40)) is not None
    books.commit(first, 40)
    second = open_request(books, 100)
    begun = books.outside.begin(second, 80, 0)
    assert begun is not None
    fork, pieces = begun
    assert [piece.entry for piece in pieces] == [5, 6, 7, 8, 9]
    assert fork.blocks[0][:5] == first.tables[0]
    books.release_fork(fork)
    books.free(first)
    assert books.pool.available == books.pool.total


def test_a_beginning_that_does_not_fit_takes_nothing() -> None:
    books = make_books("full", blocks=11)
    request = open_request(books, 100)
    assert books.outside.begin(request, 80, 1) is None
    assert books.pool.available == 10
    begun = books.outside.begin(request, 80, 0)
    assert begun is not None
    assert books.pool.available == 0


def test_a_step_that_passes_a_border_leaves_no_state_there() -> None:
    books = make_books("state and full")
    request, size = open_request(books), books.groups[0].block_size
    for start, stop, wanted in ((0, size - 1, []), (size - 1, 2 * size, [1])):
        assert books.allocate(Allocation(request, start, stop - start)) is not None
        filled = books.outside.filled(request, start, stop)
        assert [piece.entry for piece in filled if piece.group == 0] == wanted


@pytest.mark.parametrize("kinds", SERVED)
def test_every_block_of_a_beginning_was_filled_by_computing_it(kinds: str) -> None:
    books = make_books(kinds)
    request = open_request(books)
    filled, computed = set(), 0
    while computed < LENGTH:
        count = books.cut(computed, min(24, LENGTH - computed))
        assert books.allocate(Allocation(request, computed, count)) is not None
        for piece in books.outside.filled(request, computed, computed + count):
            assert request.tables[piece.group][piece.entry].id == piece.block
            filled.add((piece.group, piece.key))
        computed += count
        books.commit(request, computed)
        books.forget(request, computed)
    last = LENGTH // books.outside.border * books.outside.border
    assert needed(kinds, last) <= filled


def test_models_without_a_beginning_to_share_have_no_border() -> None:
    books = make_books("cross and full")
    assert not books.outside.possible
    assert books.outside.border == 0
