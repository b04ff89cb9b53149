"""Steps divided between a backend for prompts and one for all other rows."""

from __future__ import annotations

import pytest
import torch

from pegboard.api.attention import AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import KVLayout, KVSpec, KVTensors
from pegboard.runner.split import SplitKernel

LAYER = AttentionLayer(heads=1, kv_heads=1, head_size=2, scale=1.0)
SAME = KVLayout("same", ("kv", "block", "token", "head", "dim"))
OTHER = KVLayout("other", ("block", "kv", "token", "head", "dim"))


class Tells:
    """A kernel whose result says which kernel it was, of which row, and what the step held."""

    def __init__(self, mark: float, *layouts: KVLayout) -> None:
        self.mark = mark
        self.offers = layouts
        self.steps: list[AttentionStep] = []

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return self.offers

    def wants(self, query_len: int, kv_len: int) -> bool:
        return True

    def plan(self, step: AttentionStep) -> AttentionStep:
        self.steps.append(step)
        return step

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, step: AttentionStep
    ) -> torch.Tensor:
        assert len(inputs.query) == sum(step.query_lens) == len(step.slots)
        assert step.query_starts.tolist()[-1] == len(inputs.query)
        out = torch.empty_like(inputs.query)
        for row in range(len(step.query_lens)):
            begin, end = step.query_starts[row : row + 2]
            out[begin:end, 0, 0] = self.mark + float(step.block_table[row, 0])
            out[begin:end, 0, 1] = inputs.key[begin:end, 0, 0] + inputs.value[begin:end, 0, 0]
        return out


class Choosy(Tells):
    """Wants long chunks of short requests only."""

    def wants(self, query_len: int, kv_len: int) -> bool:
        return query_len >= 3 and kv_len < 100


def step_of(lens: list[int], kv_lens: list[int] | None = None, captured: bool = False):
    kv_lens = kv_lens or [length + 5 for length in lens]
    bounds = torch.tensor([0, *lens]).cumsum(0).int()
    return AttentionStep(
        query_lens=lens,
        kv_lens=kv_lens,
        block_lists=[[row] for row in range(len(lens))],
        query_starts=bounds,
        kv_lens_device=torch.tensor(kv_lens).int(),
        block_table=torch.arange(len(lens)).int()[:, None],
        slots=torch.arange(sum(lens)),
        captured=captured,
    )


def marks(prompts: Tells, rest: Tells, step: AttentionStep) -> list[float]:
    """What each row was served by, ``mark + row``; keys and values must have come along."""
    kernel = SplitKernel(prompts, rest)
    total = sum(step.query_lens)
    places = torch.arange(total).float()[:, None, None].expand(-1, 1, 2)
    inputs = AttentionInputs(places, places, places)
    out = kernel.forward(LAYER, inputs, None, kernel.plan(step))
    assert torch.equal(out[:, 0, 1], 2 * places[:, 0, 0])
    return out[step.query_starts[:-1].long(), 0, 0].tolist()


@pytest.mark.parametrize("lens", [[1, 1, 4, 2], [4, 1, 2, 1], [3, 2, 1, 1, 1], [1, 7], [7, 1]])
def test_every_row_is_served_once_by_the_kernel_it_belongs_to(lens):
    expected = [(100.0 if length > 1 else 200.0) + row for row, length in enumerate(lens)]
    assert marks(Tells(100.0), Tells(200.0), step_of(lens)) == expected


@pytest.mark.parametrize(("lens", "mark"), [([1, 1, 1], 200.0), ([4, 2], 100.0)])
def test_a_step_of_one_sort_goes_to_one_kernel_as_it_is(lens, mark):
    prompts, rest = Tells(100.0), Tells(200.0)
    step = step_of(lens)
    assert marks(prompts, rest, step) == [mark + row for row in range(len(lens))]
    assert [*prompts.steps, *rest.steps] == [step]


def test_a_captured_step_is_never_divided():
    prompts, rest = Tells(100.0), Tells(200.0)
    SplitKernel(prompts, rest).plan(step_of([1, 1], captured=True))
    assert not prompts.steps and len(rest.steps) == 1


def test_rows_that_the_kernel_for_prompts_does_not_want_go_to_the_other():
    lens, kv_lens = [2, 5, 6, 1], [8, 8, 300, 9]
    found = marks(Choosy(100.0), Tells(200.0), step_of(lens, kv_lens))
    assert found == [200.0, 101.0, 202.0, 203.0]


def test_parts_know_the_lengths_and_places_of_their_rows():
    prompts, rest = Tells(100.0), Tells(200.0)
    SplitKernel(prompts, rest).plan(step_of([3, 1, 2], [10, 20, 30]))
    (own,), (others,) = prompts.steps, rest.steps
    assert own.query_lens == [3, 2] and own.kv_lens == [10, 30]
    assert own.kv_lens_device.tolist() == [10, 30] and own.block_lists == [[0], [2]]
    assert own.slots.tolist() == [0, 1, 2, 4, 5] and own.query_starts.tolist() == [0, 3, 5]
    assert others.query_lens == [1] and others.slots.tolist() == [3]


def test_layouts_are_those_of_both():
    assert SplitKernel(Tells(0.0, SAME), Tells(0.0, OTHER, SAME)).layouts(None) == (SAME,)
