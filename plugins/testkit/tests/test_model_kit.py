"""The model kit passes a right family and fails wrong ones, each in the test meant for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from pegboard import LLM
from pegboard.api.model import Batch, BuildContext
from pegboard.testing import tiny
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.tiny_config import TinyConfig
from pegboard_testkit.model_kit import ModelKit

SHAPE = TinyConfig(vocab_size=259)


class TinyKit(ModelKit):
    """The family ``tiny`` against numpy in double precision."""

    family = "tiny"
    options: Mapping[str, Any] = {"platform": "null"}
    weights: dict[str, Any]

    def checkpoint(self, folder: Path) -> Path:
        write_tiny_model(folder, seed=5)
        stored = load_file(str(folder / "model.safetensors"))
        self.weights = {name: values.astype(np.float64) for name, values in stored.items()}
        return folder

    def logits(self, ids: Sequence[int]) -> Any:
        w = self.weights
        x = w["embed.weight"][list(ids)]
        for i in range(SHAPE.layers):
            part = {name.split(".", 2)[2]: w[name] for name in w if name.startswith(f"layers.{i}.")}
            y = norm(x, part["attn_norm.weight"])
            x = x + attend(y, *(part[f"attn.{name}.weight"] for name in ("q", "k", "v", "out")))
            y = norm(x, part["mlp_norm.weight"])
            gate, up = (y @ part[f"mlp.{name}.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ part["mlp.down.weight"].T
        return norm(x, w["norm.weight"]) @ w["head.weight"].T


def norm(x: Any, weight: Any) -> Any:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + tiny.EPS) * weight


def turn(x: Any) -> Any:
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] * 10_000.0 ** (-np.arange(half) / half)
    low, high = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate((low * cos - high * sin, high * cos + low * sin), -1)


def attend(y: Any, q: Any, k: Any, v: Any, out: Any) -> Any:
    n, group = len(y), SHAPE.heads // SHAPE.kv_heads
    query = turn((y @ q.T).reshape(n, SHAPE.heads, -1))
    key, value = (
        np.repeat(part.reshape(n, SHAPE.kv_heads, -1), group, 1) for part in (y @ k.T, y @ v.T)
    )
    scores = np.einsum("qhd,khd->hqk", query, turn(key)) / math.sqrt(SHAPE.head_size)
    scores = np.exp(np.where(np.tri(n, dtype=bool), scores, -np.inf))
    weights = scores / scores.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, value).reshape(n, -1) @ out.T


class TestTinyFamily(TinyKit):
    """The kit's own tests, on a family that is right."""


TESTS = sorted(name for name in dir(ModelKit) if name.startswith("test_"))


def failures(kit: ModelKit, folder: Path) -> dict[str, str]:
    """What each failing test of a kit says."""
    found = {}
    model = kit.checkpoint(folder)
    for name in TESTS:
        try:
            getattr(kit, name)(model)
        except AssertionError as error:
            found[name] = str(error)
    return found


def replace_model(monkeypatch: pytest.MonkeyPatch, model: type[tiny.TinyModel]) -> None:
    def build(ctx: BuildContext) -> tiny.TinyModel:
        return model(ctx)

    monkeypatch.setattr(tiny, "build", build)


class ForgetsThePrefix(tiny.TinyModel):
    """Counts positions from the first token of a chunk instead of the first of the request."""

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        first = torch.ones_like(batch.positions, dtype=torch.bool)
        first[1:] = batch.positions.diff() != 1
        start = batch.positions[first][first.long().cumsum(0) - 1]
        return super().forward(attrs.evolve(batch, positions=batch.positions - start), carry)


class MixesRows(tiny.TinyModel):
    """Lets the first token of a small step shine through in its other requests."""

    def forward(self, batch: Batch, carry: torch.Tensor | None = None) -> torch.Tensor:
        hidden = super().forward(batch, carry)
        alone = bool((batch.positions.diff() == 1).all())
        return hidden if alone or len(hidden) > 24 else hidden + 0.1 * hidden[:1]


class RoundsItsNorm(tiny.TinyModel):
    """Answers with half the precision."""

    def logits(self, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().logits(hidden.bfloat16().float(), batch)


CHUNKS = "test_chunks_of_a_prompt_give_what_the_whole_gives"
MATES = "test_batch_mates_do_not_change_a_request"
CACHE = "test_a_cached_beginning_gives_what_computing_it_gives"
PREEMPTION = "test_preempted_requests_give_the_same_tokens"
LOGPROBS = "test_log_probabilities_equal_the_reference"


@pytest.mark.parametrize(
    ("model", "caught", "passed"),
    [
        (ForgetsThePrefix, {CHUNKS, MATES, CACHE, PREEMPTION}, set()),
        pytest.param(MixesRows, {MATES}, {LOGPROBS}, marks=pytest.mark.accept),
        (RoundsItsNorm, {LOGPROBS, CHUNKS}, set()),
    ],
)
def test_a_family_that_is_wrong_is_caught(
    model: type[tiny.TinyModel],
    caught: set[str],
    passed: set[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    replace_model(monkeypatch, model)
    found = failures(TinyKit(), tmp_path)
    assert caught <= found.keys(), found
    assert not passed & found.keys(), found


def test_another_family_that_answers_is_caught(tmp_path: Path) -> None:
    kit = TinyKit()
    kit.family = "other"
    found = failures(kit, tmp_path)
    assert list(found) == ["test_the_family_under_test_answers"]
    assert "'tiny', not 'other'" in found["test_the_family_under_test_answers"]


class Idle(TinyKit):
    """Nothing is ever cached or preempted."""

    @contextmanager
    def engine(self, model: Path, **options: Any) -> Iterator[LLM]:
        options |= {"enable_prefix_caching": False, "num_gpu_blocks_override": 200}
        with super().engine(model, **options) as llm:
            yield llm


def test_a_test_that_proves_nothing_fails(tmp_path: Path) -> None:
    found = failures(Idle(), tmp_path)
    assert found.keys() == {CACHE, PREEMPTION}
    assert "from the cache" in found[CACHE]
    assert found[PREEMPTION].startswith("nothing was preempted")


def test_a_reference_of_the_wrong_shape_is_named(tmp_path: Path) -> None:
    class Short(TinyKit):
        def logits(self, ids: Sequence[int]) -> Any:
            return super().logits(ids)[-1:]

    kit = Short()
    model = kit.checkpoint(tmp_path)
    with pytest.raises(AssertionError, match=r"have the shape \[1, 259\], not \[2, vocabulary\]"):
        kit.test_log_probabilities_equal_the_reference(model)


@pytest.mark.accept
@pytest.mark.parametrize(("context", "block_size", "least"), [(63, 8, 64), (95, 32, 96)])
def test_a_context_that_is_too_short_for_the_tests_is_named(
    context: int, block_size: int, least: int, tmp_path: Path
) -> None:
    kit = TinyKit()
    kit.context, kit.block_size = context, block_size
    found = failures(kit, tmp_path)
    assert set(found.values()) == {f"context={context}: the tests need at least {least}"}
    kit.context = least
    assert not failures(kit, tmp_path)


@pytest.mark.parametrize("missing", ["checkpoint", "logits"])
def test_an_incomplete_kit_says_what_is_missing(missing: str) -> None:
    with pytest.raises(AssertionError, match=f"ModelKit must define {missing}"):
        getattr(ModelKit(), missing)(None)
