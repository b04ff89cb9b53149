"""A toy engine with ``filesystem``: faults of the disk, the budget, other engines, new weights."""

from __future__ import annotations

import errno
import logging
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pegboard.api.connector import KVTransferConfig
from pegboard.errors import ConfigError
from pegboard.testing.toy_connected import connected_engine, installed_board
from pegboard.testing.toy_engine import ToyEngine
from pegboard_testkit.connector_case import check_answers, requests, run

BLOCKS = 6 + 4 * 4
"""Whole blocks of 8 tokens that four requests of 70 + 12 tokens leave, 6 of them common (the last
output token is never stored)."""
FILE = 192 + 8 * 2 * 2 * 4
"""Bytes of one block of the toy model: header, then 8 tokens, key and value, 2 numbers each."""

SIZE: Any = {"block_size": 8, "blocks": 96}
Make = Callable[..., ToyEngine]


@pytest.fixture(scope="module")
def board() -> Any:
    return installed_board()


@pytest.fixture
def make(board: Any, tmp_path: Path) -> Iterator[Make]:
    made: list[ToyEngine] = []

    def build(
        role: str = "kv_both", policy: str = "recompute", caching: bool = True, **extra: Any
    ) -> ToyEngine:
        config = KVTransferConfig(
            kv_connector="filesystem",
            kv_role=role,
            kv_connector_extra_config={"path": str(tmp_path / "kv"), **extra},
            kv_load_failure_policy=policy,
        )
        made.append(connected_engine(board, config, enable_prefix_caching=caching, **SIZE))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def files(tmp_path: Path) -> list[Path]:
    return sorted(tmp_path.rglob("*.kv"))


def figures(engine: ToyEngine) -> dict[str, float]:
    return {
        name.removeprefix("filesystem_"): value
        for name, value in engine.scheduler.stats().connector.items()
    }


def run_and_close(engine: ToyEngine) -> None:
    run(engine, requests())
    engine.close()


def settle(engine: ToyEngine) -> dict[str, float]:
    """Run something short until the threads have reported; the figures."""
    for number in range(40):
        run(engine, requests(1, 3, 0, 2, salt=f"settle {number}"))
        time.sleep(0.005)
    return figures(engine)


def test_blocks_are_saved_once_and_all_of_them_are_loaded(make: Make, tmp_path: Path) -> None:
    run_and_close(make())
    saved = files(tmp_path)
    assert len(saved) == BLOCKS
    assert {path.stat().st_size for path in saved} == {FILE}
    before = [path.stat().st_ino for path in saved]
    engine = make()
    run(engine, requests())
    found = figures(engine)
    assert found["lookups"] == 4 and found["hits"] == 4 and found["failed_loads"] == 0
    assert found["hit_tokens"] == engine.scheduler.stats().cache.external_hit_tokens > 4 * 16
    engine.close()
    assert [path.stat().st_ino for path in files(tmp_path)] == before, "nothing is written again"


@pytest.mark.parametrize("caching", [True, False])
def test_what_several_requests_begin_with_is_read_once_if_the_engine_caches(
    make: Make, caching: bool
) -> None:
    run_and_close(make())
    engine = make(caching=caching)
    run(engine, requests())
    found = settle(engine)
    assert found["hits"] == 4, "each finds its own tail at least"
    assert found["loaded_blocks"] == (6 + 4 * 2 if caching else 4 * 8)


def test_a_damaged_block_is_computed_and_its_file_removed(make: Make, tmp_path: Path) -> None:
    run_and_close(make())
    victim = files(tmp_path)[3]
    content = bytearray(victim.read_bytes())
    content[-1] ^= 1
    victim.write_bytes(content)
    engine = make()
    run(engine, requests())
    found = settle(engine)
    assert found["bad_files"] >= 1 and found["failed_loads"] >= 1
    engine.close()
    assert len(files(tmp_path)) == BLOCKS, "the block is saved again"
    assert victim.read_bytes() != content


def test_with_the_policy_fail_a_damaged_block_ends_its_request_only(
    make: Make, tmp_path: Path
) -> None:
    run_and_close(make())
    for path in files(tmp_path):
        os.truncate(path, FILE)
        with path.open("r+b") as file:
            file.seek(FILE - 8)
            file.write(b"damaged!")
    engine, wanted = make(policy="fail"), [*requests(1), *requests(1, 3, 2, salt="short")]
    wanted[1].request_id = "short"
    for request in wanted:
        engine.add(request)
    engine.run()
    assert engine.told["r0"].finish_reason == "error"
    check_answers(engine, wanted[1:])


def test_blocks_that_another_engine_removed_are_computed(make: Make, tmp_path: Path) -> None:
    run_and_close(make())
    engine = make()
    for path in files(tmp_path):
        path.unlink()
    run(engine, requests())
    found = settle(engine)
    assert found["missing_files"] >= 1 and found["hit_tokens"] == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_stops_saving_and_harms_no_request(
    make: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    def full(file: int, data: Any) -> int:
        raise OSError(code, os.strerror(code))

    engine = make()
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "write", full)
        run(engine, requests())
        found = settle(engine)
    assert found["paused"] == 1 and found["write_errors"] >= 1 and found["files"] == 0
    assert found["bytes"] == 0, "room that was reserved is given back"
    assert sum("nothing is saved" in record.getMessage() for record in caplog.records) == 1
    assert not files(tmp_path)
    run(engine, requests(salt="another"))
    assert figures(engine)["dropped_saves"] == found["dropped_saves"], "nothing is tried meanwhile"


def test_a_folder_in_the_place_of_a_file_stops_no_other_save(make: Make, tmp_path: Path) -> None:
    run_and_close(make())
    victims = files(tmp_path)[:3]
    for path in victims:
        path.unlink()
        path.mkdir()
    engine = make()
    run(engine, requests())
    run(engine, requests(salt="another"))
    found = settle(engine)
    engine.close()
    assert found["write_errors"] >= 3 and found["paused"] == 0
    assert all(path.is_dir() for path in victims), "what somebody else put there stays"
    assert len(files(tmp_path)) >= 2 * BLOCKS
    assert make().connected is not None, "and the next engine starts"


def test_a_budget_of_less_than_one_block_is_refused(make: Make, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"max_bytes={FILE - 1} is not allowed: at least {FILE}"):
        make(max_bytes=FILE - 1)
    make("kv_consumer", max_bytes=FILE - 1)
    make(max_bytes=FILE)


def test_saving_goes_on_after_the_pause(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "full")

    engine = make(pause_seconds=0.05)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        run(engine, requests())
    time.sleep(0.06)
    assert settle(engine)["paused"] == 0
    run(engine, requests(salt="another"))
    engine.close()
    assert len(files(tmp_path)) == BLOCKS


LIMITED = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_filesystem_engine import limited_run
limited_run(Path(sys.argv[1]))
"""


def limited_run(path: Path) -> None:
    """In a process of its own: the system refuses every write beyond 200 bytes of a file."""
    import signal

    config = KVTransferConfig(
        kv_connector="filesystem", kv_connector_extra_config={"path": str(path)}
    )
    engine = connected_engine(installed_board(), config, **SIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    run(engine, requests())
    found = settle(engine)
    assert found["paused"] == 1 and found["write_errors"] >= 1 and found["files"] == 0, found
    engine.close()


def test_writes_that_the_system_refuses_leave_no_half_block(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "kv"), here]
    subprocess.run(command, check=True, timeout=120)
    assert [path.name for path in (tmp_path / "kv").rglob("*") if path.is_file()] == [
        "identity.json"
    ]


@pytest.mark.parametrize("eviction", ["lru", "arc"])
def test_the_budget_holds_in_every_moment_and_after_restarts(
    make: Make, tmp_path: Path, eviction: str
) -> None:
    evictions = 0
    for turn in range(5):
        budget = FILE * (15 if turn < 3 else 6)
        engine = make(max_bytes=budget, eviction=eviction, threads=2)
        wanted = [*requests(4), *requests(3, salt=f"turn {turn}")]
        for number, request in enumerate(wanted):
            request.request_id = f"{turn}.{number}"
            engine.add(request)
        over = True
        while engine.scheduler.has_work():
            engine.step()
            held = held_bytes(tmp_path)
            assert over or held <= budget, f"turn {turn}: {held} of {budget}"
            over = over and held > budget  # until what is too much for a new budget is removed
        check_answers(engine, wanted)
        engine.close()
        assert 0 < held_bytes(tmp_path) <= budget
        evictions += figures(engine)["evictions"]
    assert evictions > 0  # in some turn: what the threads are late with is left out


def held_bytes(tmp_path: Path) -> int:
    """Bytes of all blocks; some may go while they are looked at."""
    held = 0
    for path in files(tmp_path):
        with suppress(FileNotFoundError):
            held += path.stat().st_size
    return held


def test_blocks_of_other_models_count_and_go_when_they_are_the_oldest(
    make: Make, tmp_path: Path
) -> None:
    foreign = tmp_path / "kv" / ("f" * 32) / "aa" / f"0-{'aa' * 32}.kv"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(bytes(10 * FILE))
    os.utime(foreign, (1, 1))
    engine = make(max_bytes=30 * FILE)
    assert figures(engine)["bytes"] == 10 * FILE
    run_and_close(engine)
    assert not foreign.exists()
    assert len(files(tmp_path)) == BLOCKS


def test_a_consumer_saves_nothing_and_removes_nothing(make: Make, tmp_path: Path) -> None:
    run_and_close(make())
    before = files(tmp_path)
    engine = make("kv_consumer", max_bytes=1)
    run(engine, [*requests()])
    assert engine.scheduler.stats().cache.external_hit_tokens > 0
    engine.close()
    assert files(tmp_path) == before


def test_a_consumer_of_a_folder_that_does_not_exist_has_nothing(make: Make, tmp_path: Path) -> None:
    run_and_close(make("kv_consumer"))
    assert not (tmp_path / "kv").exists()


def test_two_engines_on_one_folder_see_what_the_other_saves(make: Make, tmp_path: Path) -> None:
    first, second = make(), make(rescan_seconds=0.001)
    run(first, requests())
    first.close()
    settle(second)
    run(second, requests())
    assert second.scheduler.stats().cache.external_hit_tokens > 4 * 16
    kinds = [event.kind for event in second.connected.half.events()]  # type: ignore[union-attr]
    assert kinds.count("stored") == BLOCKS, "news for this engine"


def test_two_engines_with_little_room_disturb_no_request(make: Make) -> None:
    extra = {"max_bytes": 12 * FILE, "rescan_seconds": 0.002, "threads": 2}
    engines = [make(**extra), make(**extra, eviction="arc")]
    for turn in range(6):
        wanted = requests(salt=f"{turn % 2}")
        for request in wanted:
            request.request_id = f"{turn}.{request.request_id}"
        for engine in engines:
            engine.scheduler.reset_prefix_cache()
            for request in wanted:
                engine.add(request)
        while any(engine.scheduler.has_work() for engine in engines):
            for engine in engines:
                engine.step()
        for engine in engines:
            check_answers(engine, wanted)
    assert sum(figures(engine)["lookups"] for engine in engines) == 2 * 6 * 4


def test_no_more_waits_to_be_written_than_the_queue_has_room_for(
    make: Make, tmp_path: Path
) -> None:
    engine = make(queue_bytes=1)
    run(engine, requests())
    found = settle(engine)
    assert found["dropped_saves"] >= BLOCKS and found["files"] == 0 and found["bytes"] == 0
    assert not files(tmp_path)


def test_blocks_stay_when_the_engine_forgets_its_own_cache(make: Make) -> None:
    engine = make()
    run(engine, requests())
    settle(engine)
    assert engine.scheduler.reset_prefix_cache()
    run(engine, requests())
    assert engine.scheduler.stats().cache.external_hit_tokens > 4 * 16


def test_with_new_weights_nothing_is_loaded_or_saved_any_more(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_and_close(make())
    before, engine = files(tmp_path), make()
    assert engine.connected is not None
    with caplog.at_level(logging.WARNING):
        engine.connected.reset("weights")
    run(engine, [*requests(), *requests(1, 9, 30, salt="new")][:4])
    assert engine.scheduler.stats().cache.external_hit_tokens == 0
    engine.close()
    assert files(tmp_path) == before
    assert any("weights changed" in record.getMessage() for record in caplog.records)


def test_what_was_stored_and_removed_is_told_as_events(make: Make, tmp_path: Path) -> None:
    engine = make(max_bytes=10 * FILE)
    there: set[bytes] = set()
    for turn in range(3):
        run(engine, requests(salt=f"{turn}"))
        settle(engine)
        assert engine.connected is not None
        for event in engine.connected.events():
            assert event.medium == "disk" and event.group == 0
            (there.update if event.kind == "stored" else there.difference_update)(event.keys)
    engine.close()
    names = {path.name for path in files(tmp_path)}
    assert {f"0-{key.hex()}.kv" for key in there} == names and len(names) == 10


def test_a_path_that_cannot_be_used_ends_the_start(make: Make, tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("a file")
    with pytest.raises(ConfigError, match="path="):
        make()
