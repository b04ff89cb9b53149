"""Block hashes: equal in every process, different for everything that must not be shared."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pegboard.kv import BlockHasher
from pegboard.kv.hashing import MediaSpan

IDS = list(range(100, 164))
SIZE = 16


def chain(
    ids: list[int] = IDS,
    adapter: str | None = None,
    salt: str | None = None,
    media: tuple[MediaSpan, ...] = (),
    size: int = SIZE,
) -> list[bytes]:
    hasher, hashes = BlockHasher(size), list[bytes]()
    root = hasher.root(adapter, salt)
    hasher.extend(hashes, len(ids) // size, root, lambda start, stop: ids[start:stop], media)
    return hashes


SCRIPT = """
from pegboard.kv import BlockHasher
ids = list(range(100, 164))
for adapter, salt, media in [
    (None, None, []), ("adapter", None, []), (None, "tenant", []), ("a", "b", [(20, 9, b"digest")]),
]:
    hasher, hashes = BlockHasher(16), []
    hasher.extend(hashes, 4, hasher.root(adapter, salt), lambda a, b: ids[a:b], media)
    print([value.hex() for value in hashes])
"""


def test_hashes_are_equal_in_processes_with_different_hash_seeds_o15() -> None:
    printed = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        printed.add(done.stdout)
    assert len(printed) == 1
    lines = printed.pop().splitlines()
    assert lines[0] == str([value.hex() for value in chain()])
    assert len(set(lines)) == 4, "extra keys do not change the hashes"


def test_the_first_hash_follows_the_stated_encoding() -> None:
    root = sha256(b"pegboard-kv-1\0" + b"\x02\0\0\0" + b"\0" + b"\1\3\0\0\0abc").digest()
    expected = sha256(root + b"\5\0\0\0" + b"\1\1\0\0").digest()
    assert chain([5, 257], salt="abc", size=2) == [expected]


def test_a_media_item_follows_the_stated_encoding() -> None:
    root = sha256(b"pegboard-kv-1\0" + b"\x02\0\0\0" + b"\0\0").digest()
    one = sha256(root + b"\5\0\0\0" + b"\6\0\0\0").digest()
    span = b"\2\0\0\0hi" + (-1).to_bytes(8, "little", signed=True) + (3).to_bytes(8, "little")
    first = b"\2\0\0\0hi" + (1).to_bytes(8, "little") + (3).to_bytes(8, "little")
    one = sha256(root + b"\5\0\0\0" + b"\6\0\0\0" + first).digest()
    two = sha256(one + b"\7\0\0\0" + b"\x08\0\0\0" + span).digest()
    assert chain([5, 6, 7, 8], media=((1, 3, b"hi"),), size=2) == [one, two]


def test_a_hash_covers_everything_before_its_block() -> None:
    changed = [*IDS]
    changed[3] += 1
    assert all(a != b for a, b in zip(chain(), chain(changed), strict=True))
    changed = [*IDS]
    changed[-1] += 1
    assert chain(changed)[:3] == chain()[:3]
    assert chain(changed)[3] != chain()[3]


def test_hashes_can_be_extended_block_by_block() -> None:
    hasher, hashes = BlockHasher(SIZE), list[bytes]()
    for blocks in (1, 1, 2, 4):
        hasher.extend(hashes, blocks, hasher.root(), lambda start, stop: IDS[start:stop])
    assert hashes == chain()


@pytest.mark.parametrize(
    ("field", "values"), [("salt", (None, "", "a", "b")), ("adapter", (None, "", "a"))]
)
def test_salt_and_adapter_change_every_block(field: str, values: tuple[str | None, ...]) -> None:
    chains = [chain(**{field: value}) for value in values]  # type: ignore[arg-type]
    for block in zip(*chains, strict=True):
        assert len(set(block)) == len(values), f"{field}s share a block"


def test_salt_and_adapter_are_not_mixed_up() -> None:
    assert chain(adapter="x")[0] != chain(salt="x")[0]
    assert chain(adapter="ab", salt="c")[0] != chain(adapter="a", salt="bc")[0]


def test_block_sizes_have_chains_of_their_own() -> None:
    assert BlockHasher(16).root() != BlockHasher(32).root()


DIGEST = bytes(range(32))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(b"\xff" + DIGEST[1:], id="differs in the first byte"),
        pytest.param(DIGEST[:-2] + b"\0\0", id="differs in the last 16 bits"),
        pytest.param(DIGEST[:10] + b"\xff" + DIGEST[11:], id="differs in the middle"),
        pytest.param(DIGEST[:16], id="is a beginning of it"),
    ],
)
def test_media_items_that_differ_anywhere_share_no_block_they_touch_o14(other: bytes) -> None:
    ours, theirs = chain(media=((20, 10, DIGEST),)), chain(media=((20, 10, other),))
    assert ours[0] == theirs[0], "the block before the item is not affected"
    assert all(a != b for a, b in zip(ours[1:], theirs[1:], strict=True))


def test_one_media_item_at_another_offset_shares_no_block_it_touches_o14() -> None:
    ours, theirs = chain(media=((20, 10, DIGEST),)), chain(media=((21, 10, DIGEST),))
    assert all(a != b for a, b in zip(ours[1:], theirs[1:], strict=True))


def test_an_item_that_spans_blocks_is_in_each_of_them() -> None:
    plain, spanning = chain(), chain(media=((10, 30, DIGEST),))
    assert all(a != b for a, b in zip(plain, spanning, strict=True))
    hasher = BlockHasher(SIZE)
    # Alone, without what the chain carries over: the same tokens under the same parent.
    for block in range(3):
        one, other = [b"p" * 32] * block, [b"p" * 32] * block
        hasher.extend(one, block + 1, b"p" * 32, lambda a, b: IDS[a:b], [(10, 30, DIGEST)])
        hasher.extend(other, block + 1, b"p" * 32, lambda a, b: IDS[a:b], [])
        assert one[-1] != other[-1], f"block {block} does not know the item"


@given(
    cut=st.integers(1, 5),
    media=st.lists(
        st.tuples(st.integers(0, 60), st.integers(1, 20), st.binary(min_size=1, max_size=9))
    ),
)
def test_two_lists_of_items_never_share_an_encoding(cut: int, media: list[MediaSpan]) -> None:
    shifted = tuple((offset, length, digest[:-1]) for offset, length, digest in media[:cut])
    ours = chain(media=tuple(media))
    theirs = chain(media=shifted + tuple(media[cut:]))
    differ = bool(media) and any(offset < 64 for offset, _, _ in media[:cut])
    assert (ours != theirs) == differ
