"""Logits processors at work: who serves which slot, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.logits import LogitsCall, LogitsContext, LogitsProcessor, LogitsRow, Rows
from pegboard.api.step import NewRow
from pegboard.config.logits import LogitsRoster
from pegboard.errors import PegboardError, PluginError
from pegboard.logging import get_logger
from pegboard.nn.transit import send

__all__ = ["LogitsRack", "ProcessorRows"]

Ints = np.ndarray[Any, np.dtype[np.int64]]


@attrs.define(eq=False)
class _Served:
    """A slot with processors."""

    names: list[str]
    """Of those that were told of it."""
    prompt_tokens: int
    output_ids: list[int] | None
    """None unless one of the processors needs them on the host."""
    fault: str = ""
    """Why it cannot be served."""


class LogitsRack:
    """The processors of one runner, built when they are first needed."""

    def __init__(self, roster: LogitsRoster, context: LogitsContext, table: torch.Tensor) -> None:
        """`table` has the tokens of all slots, int32 [slots, context].

        Raises `PluginError` if one that serves every request cannot be built.
        """
        self._roster = roster
        self._context = context
        self._table = table
        self._built: dict[str, Rows] = {}
        self._slots: dict[int, _Served] = {}
        for processor in roster.processors:
            if processor.name in roster.always:
                self._rows_of(processor)

    def admit(self, row: NewRow) -> None:
        """Tell the processors of a request that it begins."""
        serving = self._roster.serving(row.params)
        if not serving:
            return
        hosted = any(processor.needs_host_ids for processor in serving)
        served = _Served([], len(row.prompt_ids), list(row.output_ids) if hosted else None)
        self._slots[row.slot] = served
        for processor in serving:
            try:
                rows = self._rows_of(processor)
                served.names.append(processor.name)
                rows.added(self._row(processor, row))
            except Exception as error:
                served.fault = self._fault(processor, error)
                return

    def release(self, slot: int) -> None:
        """Tell the processors of a request that it is gone."""
        served = self._slots.pop(slot, None)
        for name in served.names if served is not None else ():
            try:
                self._built[name].removed(slot)
            except Exception as error:
                get_logger("pegboard.sampling").warning(
                    "a logits processor failed to forget a request", name=name, error=repr(error)
                )

    def slots(self) -> set[int]:
        """Slots of requests with processors."""
        return set(self._slots)

    def learn(self, token_ids: Mapping[int, Sequence[int]]) -> None:
        """Take tokens that came to the host, by slot."""
        for slot, ids in token_ids.items():
            served = self._slots.get(slot)
            if served is not None and served.output_ids is not None:
                served.output_ids += ids

    def rows(self, slots: Sequence[int], positions: Ints) -> ProcessorRows | None:
        """The rows of a step with processors; None if there are none."""
        if not self._slots or self._slots.keys().isdisjoint(slots):
            return None
        return ProcessorRows(self, tuple(slots), tuple(int(place) for place in positions))

    def apply(
        self, logits: torch.Tensor, slots: Sequence[int], lengths: Sequence[int]
    ) -> dict[int, str]:
        """Overwrite ``logits float32 [R, vocab]``; by row, why it cannot be served."""
        found = [(row, self._slots[slot]) for row, slot in enumerate(slots) if slot in self._slots]
        faults = {row: served.fault for row, served in found if served.fault}
        for processor in self._roster.processors:
            rows = [row for row, one in found if processor.name in one.names and row not in faults]
            if not rows:
                continue
            try:
                self._apply(processor, logits, rows, slots, lengths)
            except Exception as error:
                faults.update(dict.fromkeys(rows, self._fault(processor, error)))
        return faults

    def _apply(
        self,
        processor: LogitsProcessor,
        logits: torch.Tensor,
        rows: Sequence[int],
        slots: Sequence[int],
        lengths: Sequence[int],
    ) -> None:
        own = tuple(slots[row] for row in rows)
        places, lines = send(self._table.device, np.array(rows, np.int64), np.array(own, np.int64))
        part = logits if len(rows) == len(logits) else logits[places]
        counts = tuple(lengths[row] for row in rows)
        call = LogitsCall(
            part, own, counts, self._output_ids(processor, own, counts), self._table, lines
        )
        made = self._built[processor.name].apply(call)
        _check_shape(made, part)
        if made is not logits:
            logits[places] = made

    def _output_ids(
        self, processor: LogitsProcessor, slots: Sequence[int], lengths: Sequence[int]
    ) -> tuple[Sequence[int], ...] | None:
        if not processor.needs_host_ids:
            return None
        found = []
        for slot, length in zip(slots, lengths, strict=True):
            served = self._slots[slot]
            ids = served.output_ids
            assert ids is not None and served.prompt_tokens + len(ids) == length, (slot, length)
            found.append(tuple(ids))
        return tuple(found)

    def _row(self, processor: LogitsProcessor, row: NewRow) -> LogitsRow:
        return LogitsRow(
            slot=row.slot,
            arguments=self._roster.arguments(processor, row.params),
            params=row.params,
            prompt_ids=tuple(row.prompt_ids),
            output_ids=tuple(row.output_ids),
            seed=row.seed,
            child=row.child,
            end_ids=tuple(row.end_ids),
        )

    def _rows_of(self, processor: LogitsProcessor) -> Rows:
        """The built processor."""
        if processor.name not in self._built:
            try:
                own = self._roster.handed(processor)
                made = processor.build.load()(attrs.evolve(self._context, **own))
            except PegboardError:
                raise
            except Exception as error:
                raise PluginError(self._fault(processor, error)) from error
            missing = [name for name in ("added", "removed", "apply") if not hasattr(made, name)]
            if missing:
                raise PluginError(
                    f"{processor.build} made a {type(made).__name__}, which is no logits "
                    f"processor: it lacks {', '.join(missing)}"
                )
            self._built[processor.name] = made
        return self._built[processor.name]

    def _fault(self, processor: LogitsProcessor, error: Exception) -> str:
        if isinstance(error, PegboardError):
            return f"{self._roster.title(processor)}: {error}"
        return f"{self._roster.title(processor)} failed: {type(error).__name__}: {error}"


@attrs.frozen(eq=False)
class ProcessorRows:
    """The R rows of a step, some of which have processors."""

    rack: LogitsRack
    slots: tuple[int, ...]
    lengths: tuple[int, ...]
    """Tokens that each row has."""

    def apply(self, logits: torch.Tensor) -> dict[int, str]:
        """As `LogitsRack.apply`."""
        return self.rack.apply(logits, self.slots, self.lengths)


def _check_shape(made: Any, given: torch.Tensor) -> None:
    if not isinstance(made, torch.Tensor):
        raise PluginError(f"apply must return a tensor, it returned a {type(made).__name__}")
    if (made.shape, made.dtype, made.device) != (given.shape, given.dtype, given.device):
        raise PluginError(
            f"apply must return {given.dtype} {list(given.shape)} on {given.device}, it returned "
            f"{made.dtype} {list(made.shape)} on {made.device}"
        )
