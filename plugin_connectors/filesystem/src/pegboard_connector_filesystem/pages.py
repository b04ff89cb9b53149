"""Copies between the KV cache and host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch

from pegboard.api.kv import KVTensors

__all__ = ["Pages", "Staged"]


@attrs.frozen(eq=False)
class Staged:
    """A block's content on its way to host memory."""

    buffer: torch.Tensor
    copied: torch.Event | None
    """None: it is there already."""

    def content(self) -> memoryview:
        """The bytes; waits for them."""
        if self.copied is not None:
            self.copied.synchronize()
        return self.buffer.numpy().data


class Pages:
    """The cache's storage, block by block. A block's content is the pages of its group's slots, in
    the order of the slots, each in the order of its layout's axes."""

    def __init__(self, kv: Sequence[KVTensors], device: torch.device) -> None:
        self._device = device
        self._remote = device.type != "cpu"
        self._slots: dict[int, list[KVTensors]] = {}
        for tensors in kv:
            self._slots.setdefault(tensors.group, []).append(tensors)
        self._stream = torch.Stream(device=device) if self._remote else None

    def sizes(self) -> dict[int, int]:
        """Bytes of a block's content, by group."""
        pages = {group: [slot.page(0) for slot in slots] for group, slots in self._slots.items()}
        return {
            group: sum(page.numel() * page.element_size() for page in found)
            for group, found in pages.items()
        }

    def host_buffer(self, nbytes: int) -> torch.Tensor:
        """Uint8; pinned where the device copies by itself."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self._remote)

    def copy_out(self, group: int, block: int, nbytes: int) -> Staged:
        """A copy of a block, in the order of the device's present stream."""
        buffer = self.host_buffer(nbytes)
        for page, part in self._parts(group, block, buffer):
            part.copy_(page, non_blocking=self._remote)
        return Staged(buffer, self.mark())

    def mark(self) -> torch.Event | None:
        """Reached when everything submitted so far is done; None where that is at once."""
        if not self._remote:
            return None
        event = torch.Event(device=self._device)
        event.record()
        return event

    def copy_in(
        self, group: int, block: int, buffer: torch.Tensor, after: torch.Event | None
    ) -> None:
        """Fill a block once `after` is reached; it is there when this returns."""
        if self._stream is None:
            self._fill(group, block, buffer)
            return
        with self._stream:
            if after is not None:
                self._stream.wait_event(after)
            self._fill(group, block, buffer)
        self._stream.synchronize()

    def _fill(self, group: int, block: int, buffer: torch.Tensor) -> None:
        for page, part in self._parts(group, block, buffer):
            page.copy_(part, non_blocking=self._remote)

    def _parts(
        self, group: int, block: int, buffer: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The pages of a block, each with its part of a buffer in the same shape."""
        start = 0
        for slot in self._slots[group]:
            page = slot.page(block)
            stop = start + page.numel() * page.element_size()
            yield page, buffer[start:stop].view(page.dtype).view(page.shape)
            start = stop
