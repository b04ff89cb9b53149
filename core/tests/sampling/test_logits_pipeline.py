from __future__ import annotations

import math
from collections import Counter

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pegboard.sampling.logits import process_logits

VOCAB = 12
INF = float("inf")
ids = st.integers(0, VOCAB - 1)
requests = st.fixed_dictionaries(
    {
        "prompt_ids": st.lists(ids, min_size=1, max_size=9),
        "output_ids": st.lists(ids, max_size=6),
        "end_ids": st.lists(ids, max_size=3),
        "min_tokens": st.integers(0, 8),
        "allowed_token_ids": st.none() | st.lists(ids, min_size=1, max_size=5),
        "logit_bias": st.none() | st.dictionaries(ids, st.floats(-150, 150, width=32), max_size=4),
        "repetition_penalty": st.sampled_from([1.0, 0.5, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.7, -0.4]),
        "presence_penalty": st.sampled_from([0.0, 1.5]),
        "max_tokens": st.just(16),
    }
)


def naive(logits, request, mask=None):
    """One row by the book: allowed, mask, bias, min_tokens, repetition, frequency, presence."""
    row = [float(x) for x in logits]
    allowed, bias = request.get("allowed_token_ids"), request.get("logit_bias") or {}
    output = Counter(request.get("output_ids", []))
    seen = set(request.get("prompt_ids", [])) | set(output)
    for token in range(len(row)):
        if allowed is not None and token not in allowed:
            row[token] = -INF
        if mask is not None and not mask >> token & 1:
            row[token] = -INF
        row[token] += min(100, max(-100, bias.get(token, 0)))
        if len(request.get("output_ids", [])) < request.get("min_tokens", 0):
            row[token] = -INF if token in request.get("end_ids", []) else row[token]
        penalty = request.get("repetition_penalty", 1.0)
        if token in seen:
            row[token] = row[token] / penalty if row[token] > 0 else row[token] * penalty
        row[token] -= request.get("frequency_penalty", 0.0) * output[token]
        row[token] -= request.get("presence_penalty", 0.0) * (token in output)
    return row


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(batch=st.lists(requests, min_size=1, max_size=5), seed=st.integers(0, 1000), data=st.data())
def test_every_row_gets_what_a_naive_reading_of_its_parameters_gives(make_rows, batch, seed, data):
    logits = torch.randn(len(batch), VOCAB, generator=torch.Generator().manual_seed(seed)) * 4
    masks = data.draw(
        st.dictionaries(st.integers(0, len(batch) - 1), st.integers(0, 2**VOCAB - 1), max_size=2)
    )
    expected = [
        naive(row, r, masks.get(i)) for i, (row, r) in enumerate(zip(logits, batch, strict=True))
    ]
    packed = {slot: mask.to_bytes(2, "little") for slot, mask in masks.items()}
    process_logits(logits, make_rows(VOCAB, batch, packed))
    np.testing.assert_allclose(logits.numpy(), np.array(expected), rtol=1e-5, atol=1e-5)


def test_rows_without_parameters_keep_every_bit_beside_rows_that_use_all(make_rows):
    busy = {
        "allowed_token_ids": [1, 2, 3],
        "logit_bias": {2: 5.0},
        "min_tokens": 3,
        "end_ids": [3],
        "repetition_penalty": 1.7,
        "presence_penalty": 1.0,
        "prompt_ids": [1, 1, 2],
    }
    logits = torch.randn(3, VOCAB)
    before = logits.clone()
    process_logits(logits, make_rows(VOCAB, [{}, busy, {}]))
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert not torch.equal(logits[1], before[1])


def test_a_bias_does_not_bring_back_what_is_not_allowed(make_rows):
    logits = torch.zeros(1, VOCAB)
    process_logits(logits, make_rows(VOCAB, [{"allowed_token_ids": [4], "logit_bias": {5: 100.0}}]))
    assert logits[0, 5] == -INF
    assert logits[0, 4] == 0


def test_penalties_see_the_biased_logit(make_rows):
    logits = torch.full((1, VOCAB), -1.0)
    request = {"prompt_ids": [3], "logit_bias": {3: 5.0}, "repetition_penalty": 2.0}
    process_logits(logits, make_rows(VOCAB, [request]))
    assert logits[0, 3] == 2.0  # (-1 + 5) / 2; the unbiased logit would have been multiplied


def test_prompts_of_mixed_lengths_are_penalised_for_their_own_tokens_only(make_rows):
    lengths = [[1], [2, 3, 4, 5, 6, 7, 8], [0, 0]]
    batch = [{"prompt_ids": prompt, "repetition_penalty": 2.0} for prompt in lengths]
    logits = torch.ones(3, VOCAB)
    process_logits(logits, make_rows(VOCAB, batch))
    for row, prompt in zip(logits, lengths, strict=True):
        halved = {token for token, value in enumerate(row.tolist()) if value == 0.5}
        assert halved == set(prompt)


def test_repetition_counts_prompt_and_output_but_presence_and_frequency_only_output(make_rows):
    past = {"prompt_ids": [1, 1], "output_ids": [2, 2, 2]}
    logits = torch.ones(3, VOCAB)
    batch = [
        past | {"repetition_penalty": 2.0},
        past | {"presence_penalty": 0.5},
        past | {"frequency_penalty": 0.25},
    ]
    process_logits(logits, make_rows(VOCAB, batch))
    assert logits[:, :4].tolist() == [
        [1, 0.5, 0.5, 1],
        [1, 1, 0.5, 1],
        [1, 1, 0.25, 1],
    ]


def test_bias_is_clamped_to_a_hundred(make_rows):
    logits = torch.zeros(1, VOCAB)
    process_logits(logits, make_rows(VOCAB, [{"logit_bias": {5: 1000.0, 6: -1000.0}}]))
    assert logits[0, 5:7].tolist() == [100.0, -100.0]


def test_tokens_past_the_end_of_a_grammar_mask_are_not_allowed(make_rows):
    logits = torch.zeros(1, VOCAB)
    process_logits(logits, make_rows(VOCAB, [{}], {0: b"\x05"}))
    finite = [token for token in range(VOCAB) if math.isfinite(logits[0, token])]
    assert finite == [0, 2]
