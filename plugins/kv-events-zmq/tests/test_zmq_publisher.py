"""The publisher over real sockets: numbers, replay, loss, closing."""

from __future__ import annotations

import re
import socket as unix
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from pegboard import LLM, SamplingParams
from pegboard.api.events import AllBlocksCleared, KVEventBatch, PublisherSettings
from pegboard.errors import ConfigError, ResourceError
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_kv_events_zmq.publisher import ZmqPublisher, endpoint_of_rank

PATIENCE_MS = 10_000
END = b"\xff" * 8

Opened = Callable[..., ZmqPublisher]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="kv") as name:
        yield Path(name)


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    """Opens publishers below `folder`, and closes them."""
    publishers: list[ZmqPublisher] = []

    def make(**options: Any) -> ZmqPublisher:
        options.setdefault("endpoint", f"ipc://{folder}/live")
        publishers.append(ZmqPublisher(PublisherSettings(options)))
        return publishers[-1]

    yield make
    for publisher in publishers:
        publisher.close()


@pytest.fixture
def dial() -> Iterator[Callable[[int, str], zmq.Socket[bytes]]]:
    """Connects sockets, and closes them."""
    sockets: list[zmq.Socket[bytes]] = []

    def make(kind: int, endpoint: str) -> zmq.Socket[bytes]:
        socket = zmq.Context.instance().socket(kind)
        socket.set(zmq.RCVTIMEO, PATIENCE_MS)
        sockets.append(socket)
        socket.connect(endpoint)
        return socket

    yield make
    for socket in sockets:
        socket.close(linger=0)


def batch(number: int = 0) -> KVEventBatch:
    return KVEventBatch(float(number), [AllBlocksCleared()])


def subscribed(publisher: ZmqPublisher, dial: Any, topic: bytes = b"") -> zmq.Socket[bytes]:
    """A subscriber that has had its first message, so that it misses no later one."""
    socket = dial(zmq.SUB, publisher.endpoint)
    socket.subscribe(topic)
    for _ in range(PATIENCE_MS // 10):
        publisher.publish(batch())
        if socket.poll(10):
            break
    while socket.poll(100):
        socket.recv_multipart()
    return socket


def wait_until_sent(publisher: ZmqPublisher, count: int) -> None:
    for _ in range(PATIENCE_MS // 5):
        if publisher.stats().published == count:
            return
        time.sleep(0.005)
    raise AssertionError(f"{publisher.stats()} after a long time, not {count}")


def replay(dial: Any, folder: Path, start: int) -> list[list[bytes]]:
    """All messages of an answer, without the empty frame."""
    socket = dial(zmq.DEALER, f"ipc://{folder}/again")
    socket.send_multipart((b"", start.to_bytes(8, "big")))
    answer: list[list[bytes]] = []
    while not answer or answer[-1][1] != END:
        empty, *frames = socket.recv_multipart()
        assert empty == b""
        answer.append(frames)
    return answer


def test_a_message_is_topic_number_and_payload(opened: Opened, dial: Any) -> None:
    publisher = opened(topic="kv@me")
    socket = subscribed(publisher, dial, b"kv@")
    first = publisher.stats().published
    for number in range(3):
        publisher.publish(batch(number))
    for number in range(3):
        topic, sequence, payload = socket.recv_multipart()
        assert topic == b"kv@me"
        assert sequence == (first + number).to_bytes(8, "big")
        assert msgspec.msgpack.decode(payload) == [number, [{"type": "AllBlocksCleared"}], 0]


@pytest.mark.parametrize("start", [0, 3, 9, 10, 2**64 - 2])
def test_a_replay_has_all_batches_from_a_number_on_and_an_end(
    opened: Opened, dial: Any, folder: Path, start: int
) -> None:
    publisher = opened(replay_endpoint=f"ipc://{folder}/again", topic="t")
    for number in range(10):
        publisher.publish(batch(number))
    wait_until_sent(publisher, 10)
    *batches, end = replay(dial, folder, start)
    assert [int.from_bytes(number, "big") for _, number, _ in batches] == list(range(start, 10))
    times = [msgspec.msgpack.decode(payload)[0] for _, _, payload in batches]
    assert times == list(range(start, 10))
    assert all(topic == b"t" for topic, _, _ in batches)
    assert end == [b"", END, b""]


def test_a_replay_has_the_last_batches_only(opened: Opened, dial: Any, folder: Path) -> None:
    publisher = opened(replay_endpoint=f"ipc://{folder}/again", buffer_steps=3)
    for number in range(10):
        publisher.publish(batch(number))
    wait_until_sent(publisher, 10)
    *batches, _ = replay(dial, folder, 0)
    assert [number[-1] for _, number, _ in batches] == [7, 8, 9]


def test_requests_of_another_form_are_passed_over(opened: Opened, dial: Any, folder: Path) -> None:
    publisher = opened(replay_endpoint=f"ipc://{folder}/again")
    publisher.publish(batch())
    wait_until_sent(publisher, 1)
    stranger = dial(zmq.DEALER, f"ipc://{folder}/again")
    for frames in ([b"\0" * 8], [b"", b"\0" * 7], [b"", b"\0" * 9], [b"x", b"\0" * 8], [b""] * 4):
        stranger.send_multipart(frames)
    stranger.send_multipart((b"", bytes(8)))
    assert stranger.recv_multipart()[2] == bytes(8)
    assert stranger.recv_multipart()[2] == END
    assert not stranger.poll(50), "a request of another form was answered"


class Stalling(list[Any]):
    """Events that take as long to encode as it pleases the test."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Any]:
        self.reached.set()
        self.go.wait(10)
        return iter([AllBlocksCleared()])


def test_a_full_queue_drops_batches_counts_them_and_leaves_a_gap(
    opened: Opened, dial: Any, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = opened(replay_endpoint=f"ipc://{folder}/again", max_queue_size=2)
    stalling = Stalling()
    publisher.publish(KVEventBatch(0.0, stalling))
    assert stalling.reached.wait(10)
    begin = time.perf_counter()
    for number in range(1, 7):
        publisher.publish(batch(number))
    assert time.perf_counter() - begin < 1, "publishing waited for the sender"
    stats = publisher.stats()
    assert (stats.published, stats.dropped, stats.queued) == (0, 4, 2)
    stalling.go.set()
    wait_until_sent(publisher, 3)
    publisher.publish(batch(7))
    wait_until_sent(publisher, 4)
    *batches, _ = replay(dial, folder, 0)
    assert [number[-1] for _, number, _ in batches] == [0, 1, 2, 7]
    assert "4 batches of KV events were dropped" in caplog.text


def test_a_batch_that_cannot_be_sent_is_counted_and_the_next_one_goes_out(opened: Opened) -> None:
    publisher = opened()
    publisher.publish(KVEventBatch(0.0, [object()]))  # type: ignore[list-item]
    publisher.publish(KVEventBatch(object(), [AllBlocksCleared()]))  # type: ignore[arg-type]
    publisher.publish(batch())
    publisher.close()
    stats = publisher.stats()
    assert stats.published + stats.dropped == 3
    assert stats.dropped >= 1
    assert stats.published >= 1


def test_closing_sends_what_is_queued_and_frees_the_address(opened: Opened, dial: Any) -> None:
    publisher = opened()
    socket = subscribed(publisher, dial)
    first = publisher.stats().published
    for number in range(50):
        publisher.publish(batch(number))
    publisher.close()
    publisher.close()
    numbers = [int.from_bytes(socket.recv_multipart()[1], "big") for _ in range(50)]
    assert numbers == list(range(first, first + 50))
    assert not [t.name for t in threading.enumerate() if t.name.startswith("kv-events")]
    again = opened()
    assert again.endpoint == publisher.endpoint


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"endpoint": "udp://*:1"}, "endpoint='udp://*:1' is not allowed: an address with tcp://"),
        ({"endpoint": None}, "endpoint=None"),
        ({"endpoint": "tcp://*:99999999"}, "endpoint='tcp://*:99999999' is not allowed: a port"),
        ({"endpoint": "tcp://*:65536"}, "a port from 0 to 65535 or * at the end"),
        ({"endpoint": "tcp://*:-1"}, "a port from 0 to 65535"),
        ({"endpoint": "tcp://*"}, "a port from 0 to 65535"),
        ({"endpoint": "ipc:///a\0b"}, "an address without NUL"),
        ({"endpoint": "tcp://no-such-host.invalid:5555"}, "a host that can be found"),
        ({"endpoint": "ipc://\ud800"}, "text that UTF-8 can hold"),
        ({"replay_endpoint": "tcp://*:70000"}, "replay_endpoint='tcp://*:70000'"),
        ({"endpoint": "ipc://a", "replay_endpoint": "ipc://a"}, "another address than endpoint's"),
        ({"buffer_steps": 2**31 - 1}, "buffer_steps=2147483647 is not allowed"),
        ({"topic": "\ud800"}, "a string that UTF-8 can hold"),
        ({"replay_endpoint": 5557}, "replay_endpoint=5557"),
        ({"buffer_steps": 0}, "buffer_steps=0 is not allowed: an integer from 1"),
        ({"hwm": -1}, "hwm=-1"),
        ({"max_queue_size": True}, "max_queue_size=True"),
        ({"topic": b"x"}, "topic=b'x'"),
        ({"use_int_block_hashes": 1}, "use_int_block_hashes=1"),
        ({"replay_endpont": None}, "did you mean 'replay_endpoint'"),
        ({"zzz": None}, "unknown key 'zzz'; there are endpoint,"),
        ({"endpoint": "ipc:///no/such/folder/x"}, "endpoint='ipc:///no/such/folder/x'"),
        ({"replay_endpoint": "ipc:///no/such/folder/x"}, "replay_endpoint='ipc:///no"),
    ],
)
def test_bad_options_are_refused_by_name(
    folder: Path, options: dict[str, Any], message: str
) -> None:
    given = {"endpoint": f"ipc://{folder}/live", **options}
    with pytest.raises(ConfigError, match="kv_events_config") as caught:
        ZmqPublisher(PublisherSettings(given))
    assert message in str(caught.value)


def test_a_port_in_use_is_refused(opened: Opened) -> None:
    used = opened(endpoint="tcp://127.0.0.1:*").endpoint
    # Without a wildcard an address is connected to; as a replay address it is bound.
    with pytest.raises(ConfigError, match=r"replay_endpoint=.*in use"):
        opened(endpoint="tcp://127.0.0.1:*", replay_endpoint=used)


def test_an_address_without_a_wildcard_is_connected_to(opened: Opened) -> None:
    collector = zmq.Context.instance().socket(zmq.SUB)
    try:
        collector.bind("tcp://127.0.0.1:*")
        collector.subscribe(b"")
        publisher = opened(endpoint=collector.get_string(zmq.LAST_ENDPOINT))
        for _ in range(PATIENCE_MS // 10):
            publisher.publish(batch())
            if collector.poll(10):
                break
        assert len(collector.recv_multipart()) == 3
    finally:
        collector.close(linger=0)


def test_a_path_that_another_publisher_serves_is_refused_until_it_closes(opened: Opened) -> None:
    first = opened()
    with pytest.raises(ConfigError, match="a path that no other socket serves"):
        opened()
    first.close()
    assert opened().endpoint == first.endpoint


def test_a_path_that_a_dead_process_left_is_taken_over(opened: Opened, folder: Path) -> None:
    with unix.socket(unix.AF_UNIX) as left:
        left.bind(f"{folder}/live")
        left.listen()
    assert opened().endpoint == f"ipc://{folder}/live"


def test_a_rank_whose_port_there_is_not_is_refused() -> None:
    with pytest.raises(ConfigError, match=re.escape("endpoint='tcp://127.0.0.1:65536'")):
        ZmqPublisher(PublisherSettings({"endpoint": "tcp://127.0.0.1:65535"}, rank=1))


def test_both_ports_may_be_left_to_the_system(opened: Opened) -> None:
    local = "tcp://127.0.0.1:*"
    assert opened(endpoint="tcp://*:*", replay_endpoint="tcp://*:*").endpoint
    assert opened(endpoint="tcp://*:*", replay_endpoint=local, buffer_steps=2**30 - 2).endpoint


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 2, "tcp://*:5559"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("tcp://*:0", 2, "tcp://*:0"),
        ("tcp://127.0.0.1:*", 2, "tcp://127.0.0.1:*"),
        ("inproc://kv", 1, "inproc://kv_dp1"),
    ],
)
def test_each_rank_has_an_address_of_its_own(endpoint: str, rank: int, expected: str) -> None:
    assert endpoint_of_rank(endpoint, rank) == expected


def test_an_engine_publishes_what_its_requests_leave_in_the_cache(
    tmp_path: Path, folder: Path, dial: Any
) -> None:
    write_tiny_model(tmp_path / "tiny")
    config = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"ipc://{folder}/live",
        "replay_endpoint": f"ipc://{folder}/again",
        "use_int_block_hashes": False,
    }
    prompt = list(range(40))
    with LLM(
        str(tmp_path / "tiny"), platform="null", max_model_len=64, kv_events_config=config
    ) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        llm.generate([prompt], params, use_tqdm=False)
        assert llm.reset_prefix_cache()
        for _ in range(PATIENCE_MS // 10):
            if not llm.engine.kv_event_stats().queued:
                break
            time.sleep(0.01)
        (_, _, stored), (_, _, cleared), _ = replay(dial, folder, 0)
        assert llm.engine.kv_event_stats().dropped == 0
    (event,) = msgspec.msgpack.decode(stored)[1]
    assert event["type"] == "BlockStored"
    assert event["token_ids"] == prompt[:32]
    assert [len(value) for value in event["block_hashes"]] == [32, 32]
    assert msgspec.msgpack.decode(cleared)[1] == [{"type": "AllBlocksCleared"}]


def test_an_engine_that_cannot_be_built_gives_the_address_back(
    tmp_path: Path, folder: Path, opened: Opened
) -> None:
    write_tiny_model(tmp_path / "tiny")
    replay_endpoint = f"ipc://{folder}/again"
    with pytest.raises(ResourceError, match="KV cache"):
        LLM(
            str(tmp_path / "tiny"),
            platform="null",
            max_model_len=64,
            num_gpu_blocks_override=2,
            kv_events_config={
                "enable_kv_cache_events": True,
                "endpoint": f"ipc://{folder}/live",
                "replay_endpoint": replay_endpoint,
            },
        )
    assert not [t.name for t in threading.enumerate() if t.name.startswith("kv-events")]
    opened(replay_endpoint=replay_endpoint)
