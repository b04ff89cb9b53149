"""The toy families with recurrent layers pass the model kit, against the mathematics in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from pegboard.testing.checkpoints import write_hybrid_model
from pegboard.testing.hybrid_config import HybridConfig
from pegboard_testkit.model_kit import ModelKit

Array = np.ndarray[Any, np.dtype[np.float64]]


def norm(x: Array, weight: Array) -> Array:
    found: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight
    return found


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def turn(x: Array) -> Array:
    """Rotary positions: ``x [tokens, heads, size]``."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)


def attend(x: Array, w: dict[str, Array], config: HybridConfig) -> Array:
    tokens, group = len(x), config.heads // config.kv_heads
    q, k, v = ((x @ w[f"attn.{n}.weight"].T).reshape(tokens, -1, config.head_size) for n in "qkv")
    k, v = turn(k).repeat(group, 1), v.repeat(group, 1)
    scores = np.einsum("qhd,khd->hqk", turn(q), k) / np.sqrt(config.head_size)
    scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(tokens, -1) @ w["attn.out.weight"].T


def recur(x: Array, w: dict[str, Array], config: HybridConfig) -> Array:
    tokens, heads, taps = len(x), config.state_heads, config.conv_width
    mixed = np.concatenate([x @ w[f"state.{name}.weight"].T for name in "qkv"], -1)
    padded = np.concatenate((np.zeros((taps - 1, mixed.shape[1])), mixed))
    weight = w["state.conv.weight"]
    mixed = silu(sum(padded[i : i + tokens] * weight[:, i] for i in range(taps)))
    keys = heads * config.key_size
    q, k, v = (p.reshape(tokens, heads, -1) for p in np.split(mixed, [keys, 2 * keys], -1))
    gate = x @ w["state.decay.weight"].T + w["state.decay.bias"]
    decay = (1 / (1 + np.exp(-gate))) ** (1 / 16)
    state, out = np.zeros((heads, config.key_size, config.value_size)), []
    for t in range(tokens):
        state = decay[t][:, None, None] * state + k[t][:, :, None] * v[t][:, None, :]
        out.append(np.einsum("hk,hkv->hv", q[t], state))
    normed = norm(np.array(out), w["state.norm.weight"])
    return normed.reshape(tokens, -1) @ w["state.out.weight"].T


def reference(ids: Sequence[int], weights: dict[str, Array], config: HybridConfig) -> Array:
    """Logits ``[tokens, vocabulary]`` in float64."""
    x = weights["embed.weight"][list(ids)]
    for number, kind in enumerate(config.layer_kinds):
        prefix = f"layers.{number}."
        w = {n.removeprefix(prefix): v for n, v in weights.items() if n.startswith(prefix)}
        mixer = attend if kind == "full" else recur
        x = x + mixer(norm(x, w["mixer_norm.weight"]), w, config)
        y = norm(x, w["mlp_norm.weight"])
        inner = silu(y @ w["mlp.gate.weight"].T) * (y @ w["mlp.up.weight"].T)
        x = x + inner @ w["mlp.down.weight"].T
    return norm(x, weights["norm.weight"]) @ weights["head.weight"].T


class HybridKit(ModelKit):
    family = "tiny-hybrid"
    shape: Mapping[str, Any] = MappingProxyType({})

    def checkpoint(self, folder: Path) -> Path:
        return write_hybrid_model(folder, seed=11, **self.shape)

    @pytest.fixture(autouse=True)
    def _weights(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.config = HybridConfig(vocab_size=259, **self.shape)
        folder = self.checkpoint(tmp_path_factory.mktemp("reference"))
        stored = load_file(folder / "model.safetensors")
        self.weights = {name: tensor.astype(np.float64) for name, tensor in stored.items()}

    def logits(self, ids: Sequence[int]) -> Array:
        return reference(ids, self.weights, self.config)


class TestHybrid(HybridKit):
    shape = MappingProxyType({"layer_kinds": ("recurrent", "full", "recurrent")})


class TestHybridThatKeepsEveryState(HybridKit):
    shape = MappingProxyType({"layer_kinds": ("full", "recurrent")})
    options = MappingProxyType({"mamba_cache_mode": "all"})


class TestHybridWithStatesThatFillNoPage(HybridKit):
    shape = MappingProxyType({"layer_kinds": ("recurrent", "full"), "key_size": 5, "conv_width": 2})
