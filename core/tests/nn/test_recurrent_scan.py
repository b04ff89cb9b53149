"""The recurrence and its convolution: by the definition, in chunks, and cut anywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pegboard.errors import ConfigError
from pegboard.nn import RecurrentShape
from pegboard.nn.scan import causal_conv, scan_chunked, scan_stepwise

HEADS, KEY, VALUE = 2, 3, 5


def draw(tokens: int, seed: int = 0, decay: float = 0.3) -> list[torch.Tensor]:
    """Query, key, value, log decay and a state, in float64."""
    make = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    return [
        random(tokens, HEADS, KEY),
        random(tokens, HEADS, KEY),
        random(tokens, HEADS, VALUE),
        -decay * random(tokens, HEADS).abs(),
        random(HEADS, KEY, VALUE),
    ]


def test_the_stepwise_scan_is_the_formula() -> None:
    query, key, value, log_decay, state = (part.numpy() for part in draw(7))
    wanted = np.empty((7, HEADS, VALUE))
    for head in range(HEADS):
        memory = state[head]
        for t in range(7):
            memory = np.exp(log_decay[t, head]) * memory + np.outer(key[t, head], value[t, head])
            wanted[t, head] = memory.T @ query[t, head]
    found, _ = scan_stepwise(*draw(7))
    assert np.allclose(found.numpy(), wanted, atol=1e-12)


@pytest.mark.parametrize("tokens", [0, 1, 2, 15, 16, 17, 64, 65, 130])
@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_chunks_give_what_steps_give(tokens: int, chunk: int) -> None:
    y, state = scan_chunked(*draw(tokens), chunk=chunk)
    wanted, wanted_state = scan_stepwise(*draw(tokens))
    assert y.shape == (tokens, HEADS, VALUE)
    assert torch.allclose(y, wanted, atol=1e-10)
    assert torch.allclose(state, wanted_state, atol=1e-10)


@pytest.mark.parametrize("decay", [0.0, 30.0])
def test_no_decay_and_a_violent_one_stay_finite(decay: float) -> None:
    parts = [part.float() for part in draw(100, decay=decay)]
    y, state = scan_chunked(*parts)
    wanted, wanted_state = scan_stepwise(*parts)
    assert torch.isfinite(y).all() and torch.isfinite(state).all()
    assert torch.allclose(y, wanted, atol=1e-4, rtol=1e-4)
    assert torch.allclose(state, wanted_state, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("cut", [0, 1, 30, 64, 99])
def test_a_sequence_may_be_cut_anywhere(cut: int) -> None:
    *parts, state = draw(99)
    whole, end = scan_chunked(*parts, state)
    first, middle = scan_chunked(*(part[:cut] for part in parts), state)
    second, last = scan_chunked(*(part[cut:] for part in parts), middle)
    assert torch.allclose(torch.cat((first, second)), whole, atol=1e-10)
    assert torch.allclose(last, end, atol=1e-10)


def test_rows_are_scanned_each_for_itself() -> None:
    rows = [draw(3, seed) for seed in range(4)]
    together, states = scan_stepwise(*(torch.stack(parts) for parts in zip(*rows, strict=True)))
    for row, (y, state) in enumerate(zip(together, states, strict=True)):
        alone, end = scan_stepwise(*rows[row])
        assert torch.allclose(y, alone, atol=1e-12) and torch.allclose(state, end, atol=1e-12)


@pytest.mark.parametrize("width", [2, 3, 4])
def test_the_convolution_is_torchs_and_goes_on_from_its_past(width: int) -> None:
    make = torch.Generator().manual_seed(1)
    x = torch.randn(20, 6, generator=make)
    weight = torch.randn(6, width, generator=make)
    padded = F.pad(x.T, (width - 1, 0)).unsqueeze(0)
    wanted = F.conv1d(padded, weight.unsqueeze(1), groups=6).squeeze(0).T
    past = torch.zeros(width - 1, 6)
    assert torch.allclose(causal_conv(x, past, weight), wanted, atol=1e-5)
    for cut in (1, 2, 9):
        later = torch.cat((past, x))[cut : cut + width - 1]
        assert torch.allclose(causal_conv(x[cut:], later, weight), wanted[cut:], atol=1e-5)


def test_the_state_follows_from_the_shape() -> None:
    spec = RecurrentShape(32, heads=2, key_size=3, value_size=5, conv_width=4).spec()
    conv, memory = spec.with_dtype("bfloat16").states
    assert (conv.name, conv.shape, conv.dtype) == ("conv", (3, 22), "bfloat16")
    assert (memory.name, memory.shape, memory.dtype) == ("memory", (2, 3, 5), "float32")
    assert (spec.mixer, spec.cache) == ("gated-linear", "align")


@pytest.mark.parametrize(("field", "value"), [("heads", 0), ("conv_width", 1), ("key_size", -1)])
def test_a_size_that_is_too_small_is_refused_by_name(field: str, value: int) -> None:
    sizes = {"hidden_size": 8, "heads": 1, "key_size": 2, "value_size": 2, "conv_width": 2}
    with pytest.raises(ConfigError, match=rf"{field}={value} is not allowed"):
        RecurrentShape(**{**sizes, field: value})
