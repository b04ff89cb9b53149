from __future__ import annotations

import json
from collections import Counter

import msgspec
import numpy as np
import pytest
import torch

from pegboard.api.params import SamplingParams
from pegboard.api.step import NewRow
from pegboard.sampling.logprobs import LOGPROB_FLOOR, raw_logprobs, take_logprobs
from pegboard.sampling.sampler import FAULTS, sample
from pegboard.sampling.state import SamplingState

VOCAB = 24
INF = float("inf")


def row_of(slot, params, *, seed=0, child=0, prompt=(0,), output=(), end=()):
    return NewRow(slot, list(prompt), list(output), params, seed, child, list(end), [])


def draws(logits, params, positions, *, seed=0, child=0):
    """Tokens that one request draws at many positions, from one distribution."""
    state = SamplingState(1, logits.shape[-1], torch.device("cpu"))
    state.admit(row_of(0, params, seed=seed, child=child))
    slots = [0] * len(positions)
    rows = state.rows(slots, np.asarray(positions))
    return sample(logits.expand(len(positions), -1).clone(), rows).ids.tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.5),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.2, temperature=1.5),
    ],
    ids=["plain", "temperature", "top_k", "top_p", "min_p"],
)
def test_tokens_come_as_often_as_their_probabilities_say(params):
    logits = torch.randn(8, generator=torch.Generator().manual_seed(5))
    scaled = logits.double() / params.temperature
    p = torch.softmax(scaled, -1)
    order = p.argsort(descending=True)
    if params.top_k:
        p[order[params.top_k :]] = 0
    if params.min_p:
        p[p < params.min_p * p.max()] = 0
    if params.top_p < 1:
        kept = int((p[order].cumsum(-1) < params.top_p).sum()) + 1
        p[order[kept:]] = 0
    expected = (p / p.sum()).numpy()
    count = 3000
    observed = np.bincount(draws(logits, params, range(1, count + 1), seed=11), minlength=8)
    assert (observed[expected == 0] == 0).all()
    possible = expected > 0
    e = expected[possible] * count
    chi_square = ((observed[possible] - e) ** 2 / e).sum()
    limits = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5, 5: 20.5, 6: 22.5, 7: 24.3}  # 99.9 % quantiles
    assert chi_square < limits[int(possible.sum()) - 1]


def test_children_of_one_seed_differ_and_repeat():  # O05
    logits = torch.zeros(VOCAB)
    runs = [draws(logits, SamplingParams(), range(1, 40), seed=11, child=c) for c in range(4)]
    again = [draws(logits, SamplingParams(), range(1, 40), seed=11, child=c) for c in range(4)]
    assert runs == again
    assert len({tuple(run) for run in runs}) == 4
    agreements = [
        sum(a == b for a, b in zip(runs[i], runs[j], strict=True))
        for i in range(4)
        for j in range(i)
    ]
    assert max(agreements) < 12  # a 24th of 39 is expected


def test_greedy_and_random_rows_share_a_batch_without_touching_one_another():
    state = SamplingState(8, VOCAB, torch.device("cpu"))
    params = [SamplingParams(temperature=0.0), SamplingParams(top_k=5), SamplingParams(top_p=0.5)]
    logits = torch.randn(8, VOCAB, generator=torch.Generator().manual_seed(2))
    for slot in range(8):
        state.admit(row_of(slot, params[slot % 3], seed=slot))
    positions = np.full(8, 7)
    together = sample(logits.clone(), state.rows(list(range(8)), positions)).ids.tolist()
    for order in ([3, 0, 7], [1], [6, 5, 4, 2]):
        some = sample(logits[order].clone(), state.rows(order, positions[: len(order)]))
        assert some.ids.tolist() == [together[slot] for slot in order]
    greedy = [0, 3, 6]
    assert [together[slot] for slot in greedy] == logits[greedy].argmax(-1).tolist()


def test_a_greedy_tie_goes_to_the_lowest_id(make_rows):
    logits = torch.zeros(1, VOCAB)
    logits[0, [9, 4, 17]] = 1.0
    assert sample(logits, make_rows(VOCAB, [{"temperature": 0.0}])).ids.tolist() == [4]


@pytest.mark.parametrize("poison", [float("nan"), INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_of_bad_numbers_fails_alone(make_rows, poison, temperature):
    requests = [{"temperature": temperature, "logprobs": 2, "top_p": 0.9, "top_k": 5}] * 3
    logits = torch.randn(3, VOCAB)
    clean = sample(logits.clone(), make_rows(VOCAB, requests))
    logits[1, 5] = poison
    found = sample(logits, make_rows(VOCAB, requests))
    assert found.status.tolist() == [0, 1, 0]
    assert found.ids[[0, 2]].tolist() == clean.ids[[0, 2]].tolist()
    assert 0 <= int(found.ids[1]) < VOCAB
    assert clean.logprobs is not None and found.logprobs is not None
    assert found.logprobs.entries()[0] == clean.logprobs.entries()[0]


def test_a_row_of_minus_infinity_fails_but_some_excluded_tokens_do_not(make_rows):
    logits = torch.full((2, VOCAB), -INF)
    logits[1, 3] = 1.0
    found = sample(logits, make_rows(VOCAB, [{}, {}]))
    assert found.status.tolist() == [1, 0]
    assert int(found.ids[1]) == 3


def test_a_row_that_nothing_is_left_to_says_so(make_rows):
    blocked = {"allowed_token_ids": [7], "end_ids": [7], "min_tokens": 2}
    found = sample(torch.zeros(2, VOCAB), make_rows(VOCAB, [{}, blocked]))
    assert found.status.tolist() == [0, 2]
    assert "min_tokens" in FAULTS[2]


def test_overflow_after_penalties_is_told_apart_from_a_broken_model(make_rows):
    tiny = {"repetition_penalty": 1e-4, "prompt_ids": [3]}
    found = sample(torch.full((1, VOCAB), 1e36), make_rows(VOCAB, [tiny]))
    assert found.status.tolist() == [3]


@pytest.mark.parametrize("least", range(5))
def test_a_forced_end_comes_after_exactly_min_tokens_ordinary_tokens(least):  # O08
    params = SamplingParams(
        temperature=0.0, min_tokens=least, max_tokens=8, logit_bias={2: 90.0, 7: 100.0}
    )
    output: list[int] = []
    while len(output) < 8:
        state = SamplingState(1, VOCAB, torch.device("cpu"))
        state.admit(row_of(0, params, prompt=[1, 1, 1], output=output, end=[2, 7]))
        rows = state.rows([0], np.array([3 + len(output)]))
        token = int(sample(torch.zeros(1, VOCAB), rows).ids)
        output.append(token)
        if token in (2, 7):
            break
    assert [token in (2, 7) for token in output] == [False] * least + [True]
    assert output[-1] == 7


def test_sampled_tokens_are_penalised_in_the_next_step():
    params = SamplingParams(temperature=0.0, presence_penalty=2.0)
    state = SamplingState(2, VOCAB, torch.device("cpu"))
    state.admit(row_of(1, params, prompt=[3]))
    logits = torch.zeros(1, VOCAB)
    logits[0, :3] = torch.tensor([1.0, 1.5, 0.8])
    chosen = []
    for position in (1, 2, 3):
        found = sample(logits.clone(), state.rows([1], np.array([position])))
        state.append([1], found.ids)
        chosen.append(int(found.ids))
    assert chosen == [1, 0, 2]


def test_repetition_counts_a_sampled_token_and_forgets_none_of_the_prompt():
    state = SamplingState(2, VOCAB, torch.device("cpu"))
    params = SamplingParams(temperature=0.0, repetition_penalty=4.0)
    state.admit(row_of(1, params, prompt=[3]))
    logits = torch.zeros(1, VOCAB)
    logits[0, :4] = torch.tensor([1.0, 1.5, 0.8, 3.0])
    chosen = []
    for position in (1, 2, 3):
        found = sample(logits.clone(), state.rows([1], np.array([position])))
        state.append([1], found.ids)
        chosen.append(int(found.ids))
        state.append([1], torch.tensor([3]))
    assert chosen == [1, 0, 2]


def test_a_slot_used_again_keeps_nothing_of_its_former_request():
    state = SamplingState(1, VOCAB, torch.device("cpu"))
    busy = SamplingParams(
        repetition_penalty=2.0, logit_bias={1: 5.0}, logprobs=3, allowed_token_ids=[1], min_tokens=1
    )
    state.admit(row_of(0, busy, end=[4]))
    used = state.rows([0], np.array([1]))
    assert used.modified
    assert used.logprobs is not None
    state.release(0)
    state.admit(row_of(0, SamplingParams(temperature=0.0)))
    rows = state.rows([0], np.array([1]))
    assert not rows.modified
    assert rows.logprobs is None
    assert rows.random is None


def test_penalty_lines_are_given_back_and_cleared_for_the_next_request():
    state = SamplingState(3, VOCAB, torch.device("cpu"))
    params = SamplingParams(frequency_penalty=1.0)
    for _ in range(20):
        for slot in range(3):
            state.admit(row_of(slot, params, output=[slot] * 4))
        penalties = state.rows([0, 1, 2], np.array([5, 5, 5])).penalties
        assert penalties is not None
        assert penalties.counts.sum(-1).tolist() == [4, 4, 4]
        assert [int(penalties.counts[i, i]) for i in range(3)] == [4, 4, 4]
        for slot in range(3):
            state.release(slot)
    assert len(state._penalties._counts) <= 4


def test_logprobs_are_of_the_unmodified_distribution_with_rank_and_alternatives(make_rows):
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(4))
    expected = torch.log_softmax(logits.double(), -1)
    request = {"temperature": 0.0, "logit_bias": {9: 100.0}, "logprobs": 3}
    found = sample(logits.clone(), make_rows(VOCAB, [{}, request]))
    assert found.logprob_rows == (1,)
    assert found.logprobs is not None
    (entry,) = found.logprobs.entries()
    top = expected[1].topk(3)
    assert entry.ids == [9, *top.indices.tolist()]
    np.testing.assert_allclose(entry.logprobs, [expected[1, 9], *top.values], atol=1e-6)
    assert entry.rank == 1 + int((expected[1] > expected[1, 9]).sum())


def test_each_row_gets_as_many_alternatives_as_it_asked_for(make_rows):
    requests = [{"logprobs": 0}, {"logprobs": 5}, {"logprobs": -1}]
    found = sample(torch.randn(3, VOCAB), make_rows(VOCAB, requests))
    assert found.logprobs is not None
    entries = found.logprobs.entries()
    assert [len(entry.ids) for entry in entries] == [1, 6, VOCAB + 1]
    assert Counter(entries[2].ids[1:]) == Counter(range(VOCAB))


def test_excluded_tokens_have_a_finite_logprob_that_json_can_carry():
    logits = torch.full((1, 4), -INF)
    logits[0, 2] = 0.0
    (entry,) = take_logprobs(raw_logprobs(logits), torch.tensor([2]), [3]).entries()
    assert entry.logprobs == [0.0, 0.0, LOGPROB_FLOOR, LOGPROB_FLOOR]
    assert json.loads(msgspec.json.encode(entry))["logprobs"][2] == LOGPROB_FLOOR


def test_half_precision_logits_are_widened_before_anything_is_computed(make_rows):
    logits = torch.randn(1, VOCAB).bfloat16()
    found = sample(logits, make_rows(VOCAB, [{"temperature": 0.0, "logprobs": 0}]))
    assert found.logprobs is not None
    assert found.logprobs.values.dtype == torch.float32
    np.testing.assert_allclose(
        float(found.logprobs.values), float(torch.log_softmax(logits.float(), -1).max()), atol=1e-6
    )
