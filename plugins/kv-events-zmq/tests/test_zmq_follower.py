"""Followers of an engine rebuild exactly what it has cached, whenever they join."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from pegboard.api.events import KVEventBatch, PublisherSettings
from pegboard.testing.toy import ToyExecutor
from pegboard.testing.toy_engine import ToyEngine, toy_request
from pegboard.testing.toy_kinds import TOY_KINDS
from pegboard_kv_events_zmq.publisher import ZmqPublisher
from pegboard_kv_events_zmq.wire import int_hash

STEPS = 10_000
PATIENCE_MS = 20_000
END = b"\xff" * 8


class Follower:
    """A subscriber as its README tells to write one."""

    def __init__(self, folder: Path) -> None:
        context = zmq.Context.instance()
        self.live, self.again = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        for socket, name in ((self.live, "live"), (self.again, "again")):
            socket.set(zmq.RCVTIMEO, PATIENCE_MS)
            socket.connect(f"ipc://{folder}/{name}")
        self.live.subscribe(b"")
        self.cached: set[tuple[int, int]] = set()
        self.next = 0
        self.replayed = self.heard = 0

    def read(self, last: int) -> None:
        """Follow until batch `last`; a message that does not come is asked for."""
        while self.next <= last:
            if not self.live.poll(200):
                self.replay()
                continue
            _, sequence, payload = self.live.recv_multipart()
            number = int.from_bytes(sequence, "big")
            if number > self.next:
                self.replay()
            if number == self.next:
                self.take(payload)
                self.heard += 1

    def replay(self) -> None:
        self.again.send_multipart((b"", self.next.to_bytes(8, "big")))
        while True:
            _, _, sequence, payload = self.again.recv_multipart()
            if sequence == END:
                return
            assert int.from_bytes(sequence, "big") == self.next, "a replay has a gap"
            self.take(payload)
            self.replayed += 1

    def take(self, payload: bytes) -> None:
        self.next += 1
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "AllBlocksCleared":
                self.cached.clear()
                continue
            keys = {(event["group_idx"], value) for value in event["block_hashes"]}
            if event["type"] == "BlockStored":
                assert not keys & self.cached
                self.cached |= keys
            else:
                assert keys <= self.cached
                self.cached -= keys

    def close(self) -> None:
        self.live.close(linger=0)
        self.again.close(linger=0)


class Source:
    """A toy engine under random traffic that publishes each step."""

    def __init__(self, folder: Path) -> None:
        config = {"enable_kv_cache_events": True}
        self.toy = ToyEngine(
            70,
            executor=ToyExecutor(specs=TOY_KINDS["full of two sizes"]),
            check=False,
            block_size=8,
            max_num_batched_tokens=64,
            kv_events_config=config,
        )
        addresses = {"endpoint": f"ipc://{folder}/live", "replay_endpoint": f"ipc://{folder}/again"}
        self.publisher = ZmqPublisher(PublisherSettings(addresses))
        self.rng = random.Random(11)
        self.batches = self.steps = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.steps += 1
            self.traffic()
            self.toy.step()
            events = self.toy.scheduler.take_events()
            if events:
                self.publisher.publish(KVEventBatch(float(self.steps), events))
                self.batches += 1

    def traffic(self) -> None:
        rng, name = self.rng, str(self.steps)
        if rng.random() < 0.3:
            stem = [rng.randrange(3)] * rng.randrange(0, 50)
            prompt = stem + [rng.randrange(97) for _ in range(rng.randrange(1, 8))]
            salt = rng.choice([None, None, "tenant"])
            self.toy.add(toy_request(name, prompt, rng.randrange(1, 6), cache_salt=salt))
        if rng.random() < 0.01 and self.toy.told:
            self.toy.abort(rng.choice(list(self.toy.told)))
        if rng.random() < 0.002:
            self.toy.scheduler.reset_prefix_cache()

    def cached(self) -> set[tuple[int, int]]:
        return {(group, int_hash(value)) for group, value in self.toy.cached()}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


@pytest.fixture
def source(folder: Path) -> Iterator[Source]:
    source = Source(folder)
    yield source
    source.publisher.close()


def test_followers_have_exactly_what_is_cached_after_10000_random_steps(
    source: Source, folder: Path
) -> None:
    early, late, last = Follower(folder), None, None
    try:
        for part in range(10):
            source.run(STEPS // 10)
            if part == 6:
                late = Follower(folder)
            early.read(source.batches - 1)
            assert early.cached == source.cached(), f"after {source.steps} steps"
        last = Follower(folder)
        assert late is not None
        for follower in (late, last):
            follower.read(source.batches - 1)
            assert follower.cached == source.cached()
    finally:
        for follower in (early, late, last):
            if follower is not None:
                follower.close()
    assert len(source.toy.plans) > STEPS // 2, "most steps had nothing to do"
    assert source.batches > 2000
    assert source.publisher.stats().dropped == 0
    assert len(source.cached()) > 10
    assert early.heard > source.batches // 2, "the early one lived on replays"
    assert last.replayed == source.batches, "the last one had nothing but the replay"
