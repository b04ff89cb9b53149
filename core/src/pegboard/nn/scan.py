"""A linear recurrence with a decay per head, and the short causal convolution before it, in plain
torch.

Both go from a state to the next, so that a sequence may be cut anywhere::

    state, y[0:n] = f(state, x[0:n])        state, y[n:m] = f(state, x[n:m])
"""

from __future__ import annotations

import torch

__all__ = ["CHUNK", "causal_conv", "scan_chunked", "scan_stepwise"]

CHUNK = 64
"""Tokens whose scores against one another are computed at once."""


def causal_conv(x: torch.Tensor, past: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``y_t = sum_i weight[:, i] * x_{t - width + 1 + i}``, each channel for itself.

    ``x [..., T, channels]``, ``past [..., width - 1, channels]`` = the inputs before it, oldest
    first, ``weight [channels, width]``. What was after n tokens the past is ``[..., n : n + width
    - 1, :]`` of both put together.
    """
    tokens, taps = x.shape[-2], weight.shape[1]
    window = torch.cat((past, x), -2)
    total = window[..., :tokens, :] * weight[:, 0]
    for tap in range(1, taps):
        total = total + window[..., tap : tap + tokens, :] * weight[:, tap]
    return total


def scan_stepwise(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence by its definition, token by token: the oracle.

    ``query, key [..., T, heads, K]``, ``value [..., T, heads, V]``, ``log_decay [..., T, heads]``
    finite and at most 0, ``state [..., heads, K, V]``; gives ``[..., T, heads, V]`` and the state
    after the last token. Formula and source: `pegboard.api.recurrent.GatedLinearInputs`.
    """
    decay, outputs = log_decay.exp(), []
    for token in range(query.shape[-3]):
        added = key[..., token, :, :, None] * value[..., token, :, None, :]
        state = state * decay[..., token, :, None, None] + added
        outputs.append((query[..., token, :, :, None] * state).sum(-2))
    return torch.stack(outputs, -3) if outputs else torch.zeros_like(value), state


def scan_chunked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    state: torch.Tensor,
    chunk: int = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `scan_stepwise`, in products of `chunk` tokens.

    With ``G_t`` the sum of log decays up to token t of the chunk, ``y_t = exp(G_t) S_0ᵀ q_t +
    sum_{s <= t} exp(G_t - G_s) (q_t · k_s) v_s``. Source: Dao and Gu, "Transformers are SSMs",
    2024, section 6.
    """
    outputs = [value[..., :0, :, :]]
    for first in range(0, query.shape[-3], chunk):
        part = slice(first, first + chunk)
        y, state = _scan_chunk(
            query[..., part, :, :].transpose(-3, -2),
            key[..., part, :, :].transpose(-3, -2),
            value[..., part, :, :].transpose(-3, -2),
            log_decay[..., part, :].transpose(-2, -1).cumsum(-1),
            state,
        )
        outputs.append(y.transpose(-3, -2))
    return torch.cat(outputs, -3), state


def _scan_chunk(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sums: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One chunk, ``[..., heads, T, size]``; ``sums [..., heads, T]`` are the sums of log decays."""
    tokens = query.shape[-2]
    later = torch.ones(tokens, tokens, dtype=torch.bool, device=query.device).triu(1)
    # Later tokens are left out before the exponential, which would overflow for them.
    weights = (sums[..., :, None] - sums[..., None, :]).masked_fill(later, -torch.inf).exp()
    y = (query @ key.transpose(-2, -1) * weights) @ value
    y = y + (query * sums[..., None].exp()) @ state
    rest = (sums[..., -1:] - sums).exp()
    added = (key * rest[..., None]).transpose(-2, -1) @ value
    return y, state * sums[..., -1, None, None].exp() + added
