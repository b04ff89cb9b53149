"""Rows for the sampler, made the way the runner makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from pegboard.api.params import SamplingParams
from pegboard.api.step import NewRow
from pegboard.sampling.rows import SamplingRows
from pegboard.sampling.state import SamplingState

CPU = torch.device("cpu")


def new_row(slot: int, request: Mapping[str, Any]) -> NewRow:
    """A request as keywords of `SamplingParams`, and of `NewRow` where the names are its own."""
    request = dict(request)
    own = {
        "prompt_ids": request.pop("prompt_ids", [0]),
        "output_ids": request.pop("output_ids", []),
        "end_ids": request.pop("end_ids", []),
        "child": request.pop("child", 0),
    }
    seed = request.get("seed", 0)
    return NewRow(slot=slot, params=SamplingParams(**request), seed=seed, blocks=[], **own)


@pytest.fixture
def make_rows() -> Callable[..., SamplingRows]:
    """``make_rows(vocab, requests, masks={slot: bytes})``: one row per request, slot by slot."""

    def make(
        vocab: int, requests: list[dict[str, Any]], masks: Mapping[int, bytes] | None = None
    ) -> SamplingRows:
        state = SamplingState(len(requests), vocab, CPU)
        rows = [new_row(slot, request) for slot, request in enumerate(requests)]
        for row in rows:
            state.admit(row)
        positions = np.array([len(r.prompt_ids) + len(r.output_ids) for r in rows])
        return state.rows([row.slot for row in rows], positions, masks)

    return make
