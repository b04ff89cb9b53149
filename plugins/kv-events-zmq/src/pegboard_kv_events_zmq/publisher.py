"""A PUB socket that tells what the prefix cache holds, and a ROUTER socket that tells it again.

A message has three frames: the topic, the number of the batch as 8 bytes (big-endian, from 0 on,
one more for each), and the payload of `pegboard_kv_events_zmq.wire`. Encoding and sending are done
in a thread. A batch that finds its queue full is dropped, but has its number: followers see a gap
that no replay fills.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import socket as socket_module
import threading
import time

import attrs
import zmq

from pegboard.api.events import KVEventBatch, PublisherSettings, PublisherStats
from pegboard.errors import ConfigError
from pegboard_kv_events_zmq.options import ZmqOptions, reject
from pegboard_kv_events_zmq.replay import History, ReplayThread, sequence_bytes
from pegboard_kv_events_zmq.wire import BatchEncoder

__all__ = ["ZmqPublisher", "endpoint_of_rank"]

_log = logging.getLogger("pegboard.plugin.kv-events-zmq")

_CLOSING_SECONDS = 1.0
"""How long closing waits for each thread, and ZeroMQ for subscribers that have messages to get."""

_RETRY_SECONDS = 0.02


def endpoint_of_rank(endpoint: str, rank: int) -> str:
    """Where the engine of a rank publishes: its own port after the configured one, or a name with
    ``_dp<rank>``. Rank 0, and a port that the system chooses, keep what is configured."""
    if rank == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{rank}"
    host, _, port = endpoint.rpartition(":")
    return endpoint if port in ("0", "*") else f"{host}:{int(port) + rank}"


class ZmqPublisher:
    """Implements `pegboard.api.events.Publisher`."""

    def __init__(self, settings: PublisherSettings) -> None:
        """Raises `ConfigError` for options that are not allowed and addresses that cannot be
        used."""
        options = _of_rank(ZmqOptions.from_mapping(settings.options), settings.rank)
        self._encoder = BatchEncoder(settings.rank, options.use_int_block_hashes)
        self._topic = options.topic.encode()
        self._history = History(options.buffer_steps)
        self._queue: queue.Queue[tuple[int, KVEventBatch] | None] = queue.Queue(
            options.max_queue_size
        )
        self._next = 0
        self._sent = self._failed = self._dropped = 0
        self._closing = threading.Event()
        self._socket = _open_pub(options)
        self.endpoint = self._socket.get_string(zmq.LAST_ENDPOINT)
        """The address in use, with the port that the system chose."""
        self._replay = self._start_replay(options)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def publish(self, batch: KVEventBatch) -> None:
        number, self._next = self._next, self._next + 1
        try:
            self._queue.put_nowait((number, batch))
        except queue.Full:
            self._dropped += 1
            if self._dropped & (self._dropped - 1) == 0:  # at 1, 2, 4, 8 …
                _log.warning("%d batches of KV events were dropped: queue full", self._dropped)

    def stats(self) -> PublisherStats:
        return PublisherStats(self._sent, self._dropped + self._failed, self._queue.qsize())

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(queue.Full):  # then the thread stops when it has emptied it
            self._queue.put_nowait(None)
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            _log.warning("%d batches of KV events are left unsent", self._queue.qsize())
        if self._replay is not None:
            self._replay.close(_CLOSING_SECONDS)

    def _start_replay(self, options: ZmqOptions) -> ReplayThread | None:
        if options.replay_endpoint is None:
            return None
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        # A whole replay fits: what a peer has read is known to the sender half a mark late.
        socket.set(zmq.SNDHWM, 2 * (options.buffer_steps + 1))
        try:
            _attach(socket, "replay_endpoint", options.replay_endpoint)
        except BaseException:
            self._socket.close(linger=0)
            raise
        return ReplayThread(socket, self._topic, self._history)

    def _run(self) -> None:
        """The sending thread: owns the PUB socket."""
        try:
            while (item := self._queue.get()) is not None:
                self._send(*item)
                if self._closing.is_set() and self._queue.empty():
                    break
        finally:
            self._socket.close(linger=int(1000 * _CLOSING_SECONDS))

    def _send(self, number: int, batch: KVEventBatch) -> None:
        try:
            payload = self._encoder.encode(batch)
            self._history.append(number, payload)  # first: who sees a gap finds it in a replay
            self._socket.send_multipart((self._topic, sequence_bytes(number), payload))
        except Exception:
            self._failed += 1
            _log.exception("batch %d of KV events could not be sent", number)
        else:
            self._sent += 1


def _of_rank(options: ZmqOptions, rank: int) -> ZmqOptions:
    """With the addresses of a rank, checked again: its port may be none any more."""
    replay = options.replay_endpoint
    return attrs.evolve(
        options,
        endpoint=endpoint_of_rank(options.endpoint, rank),
        replay_endpoint=None if replay is None else endpoint_of_rank(replay, rank),
    )


def _open_pub(options: ZmqOptions) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
    socket.set_hwm(options.hwm)
    endpoint = options.endpoint
    local = endpoint.startswith(("ipc://", "inproc://"))
    _attach(socket, "endpoint", endpoint, bind=local or "*" in endpoint or "::" in endpoint)
    return socket


def _attach(socket: zmq.Socket[bytes], field: str, endpoint: str, bind: bool = True) -> None:
    """Bind or connect; on failure the socket is closed and `ConfigError` names the option."""
    try:
        if bind:
            _require_free(field, endpoint)
            socket.bind(endpoint)
        else:
            _require_host(field, endpoint)
            socket.connect(endpoint)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise reject(field, endpoint, f"an address that can be used ({error})") from error
    except ConfigError:
        socket.close(linger=0)
        raise


def _require_free(field: str, endpoint: str) -> None:
    """Refuse the path of an ``ipc`` socket that somebody serves: binding would take it away from
    them without a word. One that is just being closed is waited for."""
    if not endpoint.startswith("ipc://"):
        return
    path = endpoint.removeprefix("ipc://")
    deadline = time.monotonic() + _CLOSING_SECONDS
    while _is_served(path):
        if time.monotonic() > deadline:
            raise reject(field, endpoint, "a path that no other socket serves")
        time.sleep(_RETRY_SECONDS)


def _require_host(field: str, endpoint: str) -> None:
    """Refuse a host without an address: ZeroMQ would look for it for ever, and say nothing."""
    if endpoint.startswith("tcp://"):
        # Before a semicolon stands the local side of the connection.
        host = endpoint.removeprefix("tcp://").rpartition(";")[2].rpartition(":")[0]
        try:
            socket_module.getaddrinfo(host.strip("[]"), None)
        except (OSError, UnicodeError) as error:
            raise reject(field, endpoint, f"a host that can be found ({error})") from error


def _is_served(path: str) -> bool:
    if not hasattr(socket_module, "AF_UNIX"):
        return False
    with socket_module.socket(socket_module.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:  # absent, left over by a process that is gone, or too long a name
            return False
    return True
