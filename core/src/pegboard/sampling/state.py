"""Sampling parameters of all running requests, by slot, on the device with a mirror on the host.

The mirror decides what a step needs without asking the device. Parameters travel once, when a
request gets its slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from pegboard.api.params import BIAS_LIMIT, SamplingParams
from pegboard.api.step import NewRow
from pegboard.nn.transit import column, send
from pegboard.sampling.penalties import PenaltyTable
from pegboard.sampling.processors import LogitsRack
from pegboard.sampling.random import device_uniforms, uniforms
from pegboard.sampling.rows import (
    Entries,
    Flags,
    Ints,
    LogprobRows,
    RandomRows,
    SamplingRows,
)

__all__ = ["Columns", "SamplingState"]

_REALS = ("temperature", "top_p", "min_p")
_INTEGERS = ("top_k", "seed", "child")
"""Columns that exist on the device too, a table of each type."""


@attrs.frozen(eq=False)
class Columns:
    """Parameters of the rows of one step, on the device: the arguments of the op ``choose``."""

    reals: torch.Tensor
    """float64 [3, R]: temperature (0 for greedy rows), top_p, min_p."""
    integers: torch.Tensor
    """int64 [3, R]: top_k, seed, child."""

    def arguments(self, positions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """In the order of the op; ``positions int64 [R]`` are those of the tokens to choose."""
        temperature, top_p, min_p = self.reals
        top_k, seed, child = self.integers
        return (temperature, top_k, top_p, min_p, seed, child, positions)


@attrs.frozen(eq=False)
class _Extras:
    """What few requests have."""

    allowed: torch.Tensor | None
    bias_ids: torch.Tensor | None
    bias_values: torch.Tensor | None
    end_ids: torch.Tensor | None
    least_length: int
    """Tokens of prompt and output before which `end_ids` are banned."""
    logprobs: int | None


class SamplingState:
    """Parameters of up to `slots` requests."""

    def __init__(
        self,
        slots: int,
        vocab_size: int,
        device: torch.device,
        processors: LogitsRack | None = None,
    ) -> None:
        """Without `processors` no request has any."""
        self._device = device
        self.processors = processors
        self.vocab_size = vocab_size
        reals, integers = np.zeros((3, slots)), np.zeros((3, slots), np.int64)
        self._tables = (reals, integers)
        # On a CPU `to` does not copy: both then lead to the same memory.
        self._columns = Columns(
            torch.from_numpy(reals).to(device), torch.from_numpy(integers).to(device)
        )
        self._host = dict(zip((*_REALS, *_INTEGERS), (*reals, *integers), strict=True))
        self._fresh: list[int] = []
        """Slots whose parameters are not on the device yet."""
        self._random = np.zeros(slots, np.bool_)
        self._extras: dict[int, _Extras] = {}
        self._penalties = PenaltyTable(vocab_size, device)

    def admit(self, row: NewRow) -> None:
        """Take the parameters of a request that gets `row.slot`."""
        self.release(row.slot)
        for name, value in _column_values(row).items():
            self._host[name][row.slot] = value
        if self._device.type != "cpu":
            self._fresh.append(row.slot)
        self._random[row.slot] = not row.params.greedy
        extras = self._make_extras(row)
        if extras is not None:
            self._extras[row.slot] = extras
        if _penalised(row.params):
            self._penalties.admit(row)
        if self.processors is not None:
            self.processors.admit(row)

    def flush(self) -> None:
        """Send the parameters of admitted requests."""
        if self._fresh:
            slots = np.array(self._fresh, np.int64)
            values = [table[:, slots] for table in self._tables]
            place, reals, integers = send(self._device, slots, *values)
            self._columns.reals.index_copy_(1, place, reals)
            self._columns.integers.index_copy_(1, place, integers)
            self._fresh.clear()

    def plain(self, slots: Sequence[int], masks: Mapping[int, bytes]) -> bool:
        """The op ``choose`` can serve these rows: none changes logits or wants to hear of them."""
        special = self._extras.keys() | self._penalties.slots() | masks.keys()
        if self.processors is not None:
            special |= self.processors.slots()
        return not special or special.isdisjoint(slots)

    def columns(self, slots: torch.Tensor) -> Columns:
        """Parameters of ``slots int64 [R]``; slots that nobody has give some."""
        return Columns(
            self._columns.reals.index_select(1, slots),
            self._columns.integers.index_select(1, slots),
        )

    def release(self, slot: int) -> None:
        """Forget what a slot held beside its columns."""
        self._extras.pop(slot, None)
        self._penalties.release(slot)
        if self.processors is not None:
            self.processors.release(slot)

    def append(self, slots: Sequence[int], ids: torch.Tensor) -> None:
        """Count the tokens ``ids [R]`` sampled for `slots`, for requests with penalties."""
        self._penalties.append(slots, ids)

    def rows(
        self, slots: Sequence[int], positions: Ints, masks: Mapping[int, bytes] | None = None
    ) -> SamplingRows:
        """What the sampler needs to choose the next tokens of these slots.

        `positions` are their indices in prompt and output, one per slot.
        `masks` are late inputs: allowed-token bitmasks by slot; those of other slots are ignored.
        """
        places = np.asarray(slots, dtype=np.int64)
        chosen = self._random[places]
        return SamplingRows(
            count=len(places),
            greedy=not chosen.all(),
            masks=self._masks(slots, masks or {}),
            penalties=self._penalties.rows(slots),
            processors=self.processors.rows(slots, positions) if self.processors else None,
            random=self._random_rows(places, positions, chosen.nonzero()[0]),
            **self._sparse(slots, positions),
        )

    def _make_extras(self, row: NewRow) -> _Extras | None:
        params = row.params
        bias = params.logit_bias or {}
        extras = _Extras(
            allowed=self._ids(params.allowed_token_ids),
            bias_ids=self._ids(list(bias)),
            bias_values=self._floats(list(bias.values())),
            end_ids=self._ids(row.end_ids if params.min_tokens else None),
            least_length=len(row.prompt_ids) + params.min_tokens,
            logprobs=params.logprobs,
        )
        present = (extras.allowed, extras.bias_ids, extras.end_ids, extras.logprobs)
        return extras if any(value is not None for value in present) else None

    def _ids(self, ids: Sequence[int] | None) -> torch.Tensor | None:
        """Distinct ids as a tensor; None for none."""
        distinct = list(dict.fromkeys(ids or ()))
        return column(distinct, np.int64, self._device) if distinct else None

    def _floats(self, values: Sequence[float]) -> torch.Tensor | None:
        if not values:
            return None
        clamped = np.clip(np.asarray(values, dtype=np.float64), -BIAS_LIMIT, BIAS_LIMIT)
        return send(self._device, clamped.astype(np.float32))[0]

    def _random_rows(self, slots: Ints, positions: Ints, chosen: Ints) -> RandomRows | None:
        if not len(chosen):
            return None
        slots, positions = slots[chosen], positions[chosen]
        host = {name: values[slots] for name, values in self._host.items()}
        rows, place, where = send(self._device, chosen, slots, positions)
        columns = self.columns(place)
        temperature, top_p, min_p = columns.reals
        top_k, seed, child = columns.integers
        on_host = self._device.type == "cpu"
        uses_top_k = (host["top_k"] > 0) & (host["top_k"] < self.vocab_size)
        return RandomRows(
            rows=rows,
            uniforms=torch.from_numpy(uniforms(host["seed"], host["child"], positions))
            if on_host
            else device_uniforms(seed, child, where),
            temperature=temperature,
            min_p=min_p,
            top_k=top_k,
            top_p=top_p,
            uses_min_p=host["min_p"] > 0,
            uses_top_k=uses_top_k,
            uses_top_p=host["top_p"] < 1,
            most=int(host["top_k"][uses_top_k].max(initial=1)),
        )

    def _masks(
        self, slots: Sequence[int], masks: Mapping[int, bytes]
    ) -> tuple[tuple[int, torch.Tensor], ...]:
        return tuple(
            (row, send(self._device, _unpack(masks[slot], self.vocab_size))[0])
            for row, slot in enumerate(slots)
            if slot in masks
        )

    def _sparse(self, slots: Sequence[int], positions: Ints) -> dict[str, Any]:
        """What few requests have: allowed ids, bias, banned end ids, log-probabilities."""
        found = [(row, self._extras[s]) for row, s in enumerate(slots) if s in self._extras]
        if not found:
            return {}
        allowed = [(row, e.allowed) for row, e in found if e.allowed is not None]
        banned = [
            (row, e.end_ids)
            for row, e in found
            if e.end_ids is not None and positions[row] < e.least_length
        ]
        wanted = [(row, e.logprobs) for row, e in found if e.logprobs is not None]
        return {
            "allowed": Entries.of(*zip(*allowed, strict=True)) if allowed else None,
            "bias": _bias_entries(found),
            "banned": Entries.of(*zip(*banned, strict=True)) if banned else None,
            "logprobs": _logprob_rows(wanted) if wanted else None,
        }


def _column_values(row: NewRow) -> dict[str, float | int]:
    params = row.params
    return {
        "temperature": 0.0 if params.greedy else params.temperature,
        "min_p": params.min_p,
        "top_k": max(params.top_k, 0),
        "top_p": params.top_p,
        "seed": row.seed,
        "child": row.child,
    }


def _penalised(params: SamplingParams) -> bool:
    neutral = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    return neutral != (1.0, 0.0, 0.0)


def _bias_entries(found: Sequence[tuple[int, _Extras]]) -> Entries | None:
    rows, ids, values = [], [], []
    for row, extras in found:
        if extras.bias_ids is not None and extras.bias_values is not None:
            rows.append(row)
            ids.append(extras.bias_ids)
            values.append(extras.bias_values)
    return Entries.of(rows, ids, values) if rows else None


def _logprob_rows(wanted: Sequence[tuple[int, int]]) -> LogprobRows:
    rows, widths = zip(*wanted, strict=True)
    return LogprobRows(rows=rows, widths=widths)


def _unpack(mask: bytes, vocab_size: int) -> Flags:
    """bool [vocab] of a little-endian bitmask; tokens past its end are not allowed."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=vocab_size)
    return bits.astype(np.bool_)
