from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pegboard.sampling.draw import draw, filtered_weights

VOCAB = 40
quiet = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
requests = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.3, 1.0, 2.5]),
        "top_k": st.sampled_from([-1, 0, 1, 3, 7, VOCAB, VOCAB + 9]),
        "top_p": st.sampled_from([1.0, 1e-9, 0.3, 0.9, 0.999]),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
        "seed": st.integers(-(2**63), 2**63 - 1),
        "child": st.integers(0, 5),
    }
)


def naive(logits, request):
    """Probabilities after temperature, min_p, top_k, top_p, in float64; ties stay."""
    scaled = np.asarray(logits, np.float64) / request["temperature"]
    p = np.exp(scaled - scaled.max())
    p[p < request.get("min_p", 0) * p.max()] = 0
    k = request.get("top_k", 0)
    if 0 < k < len(p):
        p[p < np.sort(p)[-k]] = 0
    p /= p.sum()
    if request.get("top_p", 1.0) < 1:
        total, least = 0.0, 0.0
        for value in sorted(p, reverse=True):
            least = value
            total += value
            if total >= request["top_p"]:
                break
        p[p < least] = 0
    return p / p.sum()


def distribution(logits, rows):
    weights = filtered_weights(logits, rows.random)
    return (weights / weights.sum(-1, keepdim=True)).numpy()


@quiet
@given(batch=st.lists(requests, min_size=1, max_size=5), seed=st.integers(0, 10**6))
def test_every_row_is_filtered_as_a_naive_reading_says(make_rows, batch, seed):
    logits = torch.randn(len(batch), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    expected = np.stack([naive(row, r) for row, r in zip(logits, batch, strict=True)])
    found = distribution(logits, make_rows(VOCAB, batch))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert ((found > 0) == (expected > 0)).all()


@quiet
@given(batch=st.lists(requests, min_size=2, max_size=6), seed=st.integers(0, 10**6))
def test_a_row_draws_the_same_alone_in_a_batch_and_in_groups(make_rows, batch, seed):
    logits = torch.randn(len(batch), VOCAB, generator=torch.Generator().manual_seed(seed)) * 3
    together = draw(logits, make_rows(VOCAB, batch).random)
    in_groups = draw(logits, make_rows(VOCAB, batch).random, group=4)
    alone = [
        int(draw(logits[i : i + 1], make_rows(VOCAB, [r]).random)) for i, r in enumerate(batch)
    ]
    assert together.tolist() == in_groups.tolist() == alone


def test_filters_of_one_row_leave_the_bits_of_the_others(make_rows):
    logits = torch.randn(3, VOCAB)
    plain = filtered_weights(logits, make_rows(VOCAB, [{}, {}, {}]).random)
    busy = {"top_k": 3, "top_p": 0.5, "min_p": 0.1}
    mixed = filtered_weights(logits, make_rows(VOCAB, [{}, busy, {}]).random)
    assert torch.equal(plain[[0, 2]], mixed[[0, 2]])
    assert 0 < (mixed[1] > 0).sum() <= 3


def test_tokens_that_tie_with_the_last_one_kept_are_kept(make_rows):
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]] * 2)
    rows = make_rows(5, [{"top_k": 2}, {"top_p": 0.6}])
    for row in filtered_weights(logits, rows.random) > 0:
        assert row.tolist() == [True, True, True, True, False]


def test_top_p_looks_at_what_top_k_left(make_rows):
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))
    # Of the two left, the likelier has 0.4 / 0.7 = 0.57 >= 0.5; of all four it would take two.
    rows = make_rows(4, [{"top_k": 2, "top_p": 0.5}])
    assert (filtered_weights(logits, rows.random) > 0).tolist() == [[True, False, False, False]]
    rows = make_rows(4, [{"top_p": 0.5}])
    assert (filtered_weights(logits, rows.random) > 0).tolist() == [[True, True, False, False]]


def test_min_p_looks_at_the_scaled_distribution(make_rows):
    logits = torch.log(torch.tensor([[0.8, 0.2]]))
    for temperature, kept in ((1.0, 1), (3.0, 2)):
        rows = make_rows(2, [{"min_p": 0.5, "temperature": temperature}])
        assert int((filtered_weights(logits, rows.random) > 0).sum()) == kept


@pytest.mark.parametrize("spread", [0.0, 0.01, 3.0])
def test_top_p_is_right_where_few_or_almost_all_of_a_large_vocabulary_are_kept(make_rows, spread):
    vocab = 3000
    logits = torch.randn(1, vocab, generator=torch.Generator().manual_seed(1)) * spread
    request = {"top_p": 0.8, "temperature": 1.0}
    found = distribution(logits, make_rows(vocab, [request]))
    expected = naive(logits[0], request)
    assert ((found[0] > 0) == (expected > 0)).all()
    assert (np.count_nonzero(expected) > vocab / 2) == (spread < 1)


def test_the_ends_and_borders_of_the_draw_take_possible_tokens(make_rows):
    logits = torch.tensor([[-float("inf"), 0.0, 0.0, -float("inf")]])
    random = make_rows(4, [{}]).random
    for uniform, token in ((2.0**-53, 1), (0.5, 2), (1 - 2.0**-53, 2)):
        random.uniforms[0] = uniform
        assert draw(logits, random).tolist() == [token]


def test_a_tiny_temperature_is_as_good_as_greedy(make_rows):
    logits = torch.randn(1, VOCAB) * 20
    rows = make_rows(VOCAB, [{"temperature": 2e-5}])
    assert draw(logits, rows.random).tolist() == [int(logits.argmax())]
