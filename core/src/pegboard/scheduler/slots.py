"""Slots: the places of running requests on the device.

A slot is used again only after the update of the last step that named it. In synchronous scheduling
that step is over when a request is preempted or found finished, so that a slot freed in a plan may
be given to a new row of the same plan (the runner takes `freed_slots` before `new_rows`). While a
step that names the slot is in flight, it stays back.
"""

from __future__ import annotations

from collections import deque

__all__ = ["SlotBook"]


class SlotBook:
    """Which slots are free, and which are to be named as freed in the next plan."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))
        self._back: deque[tuple[int, int]] = (
            deque()
        )  # (last step, slot), waiting for that step's update
        self._unsaid: list[int] = []
        self._updated = -1

    @property
    def available(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self) -> int:
        return self._free.pop()

    def release(self, slot: int, last_step: int) -> None:
        """Give back a slot that plans up to `last_step` named."""
        self._unsaid.append(slot)
        if last_step <= self._updated:
            self._free.append(slot)
        else:
            self._back.append((last_step, slot))

    def updated(self, step_id: int) -> None:
        """Steps up to `step_id` are over."""
        self._updated = step_id
        for _ in range(len(self._back)):
            last_step, slot = self._back.popleft()
            if last_step <= step_id:
                self._free.append(slot)
            else:
                self._back.append((last_step, slot))

    def freed(self) -> list[int]:
        """Slots released since the last call, to be told to the runner."""
        unsaid, self._unsaid = self._unsaid, []
        return unsaid

    def check(self, used: list[int]) -> None:
        """Verify that each slot is either free, staying back, or one of `used`."""
        every = sorted([*self._free, *(slot for _, slot in self._back), *used])
        assert every == list(range(self.count)), f"slots are lost or doubled: {every}"
