"""What was sent lately, and the thread that sends it again to those who ask."""

from __future__ import annotations

import itertools
import threading
from collections import deque

import zmq

__all__ = ["END_OF_REPLAY", "History", "ReplayThread", "sequence_bytes"]

END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
"""Stands in the place of a sequence number after the last batch of a replay."""

_POLL_MS = 100
"""How long closing may take to be noticed."""


def sequence_bytes(number: int) -> bytes:
    """A sequence number on the wire."""
    return number.to_bytes(8, "big")


class History:
    """The last batches, oldest first, as ``(number, payload)``. Used by two threads."""

    def __init__(self, size: int) -> None:
        self._batches: deque[tuple[int, bytes]] = deque(maxlen=size)
        self._lock = threading.Lock()

    def append(self, number: int, payload: bytes) -> None:
        with self._lock:
            self._batches.append((number, payload))

    def since(self, start: int) -> list[tuple[int, bytes]]:
        """Those from number `start` on."""
        with self._lock:
            recent = itertools.takewhile(lambda batch: batch[0] >= start, reversed(self._batches))
            return list(recent)[::-1]


class ReplayThread:
    """Serves a ROUTER socket: a request is an empty frame and 8 bytes, the number to start from.

    The answer is one message per batch, ``["", topic, number, payload]``, then the end marker
    ``["", "", -1, ""]``. A request of another form is ignored.
    """

    def __init__(self, socket: zmq.Socket[bytes], topic: bytes, history: History) -> None:
        """Takes over `socket`, which nobody else may use any more."""
        self._socket = socket
        self._topic = topic
        self._history = history
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="kv-events-replay", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Stop serving."""
        self._closing.set()
        self._thread.join(timeout)

    def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                if self._socket.poll(_POLL_MS):
                    self._answer(self._socket.recv_multipart())
        finally:
            self._socket.close(linger=0)

    def _answer(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or frames[1] or len(frames[2]) != 8:
            return
        client, start = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._history.since(start):
            message = (client, b"", self._topic, sequence_bytes(number), payload)
            self._socket.send_multipart(message)
        self._socket.send_multipart((client, b"", b"", END_OF_REPLAY, b""))
