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
from pegboard.sampling.penalties import PenaltyTable
from pegboard.sampling.random import device_uniforms, uniforms
from pegboard.sampling.rows import Entries, Ints, LogprobRows, RandomRows, SamplingRows

__all__ = ["SamplingState"]

_COLUMNS = {
    "temperature": np.float64,
    "min_p": np.float64,
    "top_k": np.int64,
    "top_p": np.float64,
    "seed": np.int64,
    "child": np.int64,
}
"""Columns that exist on the device too."""


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

    def __init__(self, slots: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self.vocab_size = vocab_size
        self._host = {name: np.zeros(slots, dtype) for name, dtype in _COLUMNS.items()}
        # On a CPU `to` does not copy: both names then lead to the same memory.
        self._columns = {name: torch.from_numpy(c).to(device) for name, c in self._host.items()}
        self._random = np.zeros(slots, np.bool_)
        self._extras: dict[int, _Extras] = {}
        self._penalties = PenaltyTable(vocab_size, device)

    def admit(self, row: NewRow) -> None:
        """Take the parameters of a request that gets `row.slot`."""
        self.release(row.slot)
        values = _column_values(row)
        for name, value in values.items():
            self._host[name][row.slot] = value
            if self._device.type != "cpu":
                self._columns[name][row.slot] = value
        self._random[row.slot] = not row.params.greedy
        extras = self._make_extras(row)
        if extras is not None:
            self._extras[row.slot] = extras
        if _penalised(row.params):
            self._penalties.admit(row)

    def release(self, slot: int) -> None:
        """Forget what a slot held beside its columns."""
        self._extras.pop(slot, None)
        self._penalties.release(slot)

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
        return torch.tensor(distinct, dtype=torch.int64, device=self._device) if distinct else None

    def _floats(self, values: Sequence[float]) -> torch.Tensor | None:
        if not values:
            return None
        clamped = np.clip(np.asarray(values, dtype=np.float64), -BIAS_LIMIT, BIAS_LIMIT)
        return torch.from_numpy(clamped.astype(np.float32)).to(self._device)

    def _random_rows(self, slots: Ints, positions: Ints, chosen: Ints) -> RandomRows | None:
        if not len(chosen):
            return None
        slots, positions = slots[chosen], positions[chosen]
        host = {name: column[slots] for name, column in self._host.items()}
        place = torch.from_numpy(slots).to(self._device)
        device = {name: column[place] for name, column in self._columns.items()}
        return RandomRows(
            rows=torch.from_numpy(chosen).to(self._device),
            uniforms=self._uniforms(host, device, positions),
            temperature=device["temperature"],
            min_p=device["min_p"],
            top_k=device["top_k"],
            top_p=device["top_p"],
            uses_min_p=host["min_p"] > 0,
            uses_top_k=(host["top_k"] > 0) & (host["top_k"] < self.vocab_size),
            uses_top_p=host["top_p"] < 1,
        )

    def _uniforms(
        self, host: Mapping[str, Any], device: Mapping[str, torch.Tensor], positions: Ints
    ) -> torch.Tensor:
        if self._device.type == "cpu":
            return torch.from_numpy(uniforms(host["seed"], host["child"], positions))
        where = torch.from_numpy(positions).to(self._device)
        return device_uniforms(device["seed"], device["child"], where)

    def _masks(
        self, slots: Sequence[int], masks: Mapping[int, bytes]
    ) -> tuple[tuple[int, torch.Tensor], ...]:
        return tuple(
            (row, _unpack(masks[slot], self.vocab_size).to(self._device))
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


def _unpack(mask: bytes, vocab_size: int) -> torch.Tensor:
    """bool [vocab] of a little-endian bitmask; tokens past its end are not allowed."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=vocab_size)
    return torch.from_numpy(bits.astype(np.bool_))
