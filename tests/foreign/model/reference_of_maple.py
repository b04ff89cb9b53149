"""The same mathematics in a few lines, in double precision."""

import math

import numpy as np
from pegboard_model_maple.config import MapleConfig

from pegboard.testing.checkpoints import ByteVocabulary

vocabulary = ByteVocabulary()
config = MapleConfig(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=vocabulary.size,
    max_position_embeddings=128,
    eos_token_id=1,
    rms_norm_eps=1e-5,
    rope_theta=5000.0,
    tied=True,
)


def random_weights() -> dict[str, np.ndarray]:
    draws = np.random.default_rng(0)
    wide, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    shared = config.num_key_value_heads * config.head_size
    shapes = {"embed": (vocab, wide), "norm": (wide,)}
    for i in range(config.num_hidden_layers):
        shapes |= {f"layers.{i}.{name}": (wide, wide) for name in ("q", "o")}
        shapes |= {f"layers.{i}.{name}": (shared, wide) for name in ("k", "v")}
        shapes |= {f"layers.{i}.{name}": (inner, wide) for name in ("gate", "up")}
        shapes |= {f"layers.{i}.{name}": (wide,) for name in ("norm1", "norm2")}
        shapes |= {f"layers.{i}.down": (wide, inner)}
    draw = {name: 0.3 * draws.standard_normal(shape) for name, shape in shapes.items()}
    return {f"{name}.weight": values.astype(np.float32) for name, values in draw.items()}


def norm(x, weight):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * weight


def turn(x):
    """Rotary positions: x [tokens, heads, size]."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * config.rope_theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    low, high = x[..., :half], x[..., half:]
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def reference(ids: list[int], w: dict[str, np.ndarray]) -> np.ndarray:
    """Logits [tokens, vocabulary]."""
    w = {name.removesuffix(".weight"): values.astype(np.float64) for name, values in w.items()}
    x, n, size = w["embed"][ids], len(ids), config.head_size
    group = config.num_attention_heads // config.num_key_value_heads
    for i in range(config.num_hidden_layers):
        y = norm(x, w[f"layers.{i}.norm1"])
        q, k, v = ((y @ w[f"layers.{i}.{part}"].T).reshape(n, -1, size) for part in "qkv")
        k, v = (each.repeat(group, axis=1) for each in (turn(k), v))
        scores = np.einsum("qhd,khd->hqk", turn(q), k) / math.sqrt(size)
        seen = softmax(np.where(np.tri(n, dtype=bool), scores, -np.inf))
        attended = np.einsum("hqk,khd->qhd", seen, v).reshape(n, -1)
        x = x + attended @ w[f"layers.{i}.o"].T
        y = norm(x, w[f"layers.{i}.norm2"])
        gate, up = y @ w[f"layers.{i}.gate"].T, y @ w[f"layers.{i}.up"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w[f"layers.{i}.down"].T
    return norm(x, w["norm"]) @ w["embed"].T
