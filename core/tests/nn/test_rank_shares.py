"""Layers that are shared out over ranks compute what the whole layer computes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pegboard.api.model import Batch, BuildContext, Parallel
from pegboard.api.quant import LayerSpec, ParamSpec
from pegboard.errors import ConfigError, UnsupportedError
from pegboard.nn import (
    AttentionBlock,
    AttentionShape,
    ConvWeight,
    Embedding,
    GatedMLP,
    Head,
    Linear,
    MoE,
    OpTable,
    Rope,
    RopeConfig,
    Weighted,
    plain_method,
)
from pegboard.testing.ranks import run_ranks
from pegboard.weights.plan import shard_of

CPU, FLOAT = torch.device("cpu"), torch.float32
WORLDS = (2, 3, 4)


def context(parallel: Parallel | None = None) -> BuildContext:
    return BuildContext(
        config=None,
        dtype=FLOAT,
        device=CPU,
        ops=OpTable.plain(),
        method=lambda layer: plain_method(layer, FLOAT, OpTable.plain()),
        sources=lambda prefix, parts: ((),) * parts,
        parallel=parallel or Parallel(),
    )


def batch(tokens: int) -> Batch:
    places = torch.arange(tokens)
    return Batch(places, places, places, (), {})


def drawn(prefix: str, part: int, spec: ParamSpec) -> torch.Tensor:
    """A whole parameter, the same for equal names."""
    generator = torch.Generator().manual_seed(sum(map(ord, f"{prefix}{part}{spec.name}")))
    return torch.randn(spec.shape, generator=generator)


def fill(model: torch.nn.Module, parallel: Parallel | None = None) -> None:
    """Give every layer its rank's shares, as the loader cuts them."""
    for leaf in model.modules():
        if not isinstance(leaf, Weighted) or not leaf.wanted():
            continue
        loaded: dict[str, list[torch.Tensor]] = defaultdict(list)
        for part, spec in leaf.wanted():
            whole = drawn(leaf.prefix, part, spec)
            shard = shard_of(leaf.prefix, spec, parallel or Parallel())
            if shard is not None:
                whole = whole.narrow(shard.axis, shard.start, shard.stop - shard.start)
            loaded[spec.name].append(whole.contiguous())
        leaf.finalise(loaded)


def same_on_ranks(
    world: int,
    build: Callable[[BuildContext], torch.nn.Module],
    use: Callable[[Any], torch.Tensor],
) -> None:
    """Every rank's result is that of the whole module, and the same bits on all of them."""
    whole = build(context())
    fill(whole)

    def one(parallel: Parallel) -> torch.Tensor:
        model = build(context(parallel))
        fill(model, parallel)
        return use(model)

    found = run_ranks(world, one)
    assert all(torch.equal(found[0], other) for other in found[1:])
    torch.testing.assert_close(found[0], use(whole), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("world", WORLDS)
def test_a_row_layer_adds_up_and_has_its_bias_once(world: int) -> None:
    x = torch.randn(5, 24)

    def use(layer: Linear) -> torch.Tensor:
        own = layer.layer
        width = own.in_features // own.world
        return layer(x[:, own.rank * width :][:, :width], batch(5))

    same_on_ranks(world, lambda ctx: Linear(ctx, "x", 24, (7,), "row", bias=True), use)


def test_a_column_layer_gives_each_rank_its_share_of_every_part() -> None:
    x = torch.randn(3, 6)
    whole = Linear(context(), "x", 6, (4, 8), "column", bias=True)
    fill(whole)
    first, second = whole(x, batch(3)).split((4, 8), 1)
    for rank in range(2):
        layer = Linear(context(Parallel(rank, 2)), "x", 6, (4, 8), "column", bias=True)
        fill(layer, Parallel(rank, 2))
        wanted = torch.cat((first.chunk(2, 1)[rank], second.chunk(2, 1)[rank]), 1)
        torch.testing.assert_close(layer(x, batch(3)), wanted)


def test_neighbouring_ranks_hold_the_same_share_of_a_part_with_copies() -> None:
    for rank, (own, shared) in enumerate([((0, 2), (0, 3)), ((2, 4), (0, 3)), ((4, 6), (3, 6))]):
        parallel = Parallel(rank, 4)
        layer = Linear(context(parallel), "x", 5, (8, 6), "column", bias=True, copies=(1, 2))
        shards = [shard_of("x", spec, parallel) for _, spec in layer.wanted()]
        spans = [(shard.start, shard.stop) for shard in shards if shard is not None]
        assert spans == [own, shared, own, shared]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("vocab", [12, 13, 5])
def test_a_vocabulary_is_shared_out_whatever_its_size(world: int, vocab: int) -> None:
    ids = torch.tensor([0, vocab - 1, 3, vocab // 2, 3])

    def use(layer: Embedding) -> torch.Tensor:
        return layer(ids, batch(5))

    same_on_ranks(world, lambda ctx: Embedding(ctx, "e", vocab, 6, scale=1.5), use)
    x = torch.randn(4, 6)
    same_on_ranks(
        world,
        lambda ctx: Head(ctx, "h", vocab, 6, soft_cap=3.0),
        lambda head: head(x, batch(4)),
    )


def test_a_tied_head_computes_with_each_ranks_rows_of_the_embedding() -> None:
    def build(ctx: BuildContext) -> torch.nn.ModuleList:
        embed = Embedding(ctx, "e", 11, 6, tied=True)
        return torch.nn.ModuleList((embed, Head(ctx, "h", 11, 6, embed)))

    x = torch.randn(2, 6)
    same_on_ranks(2, build, lambda pair: pair[1](x, batch(2)))


def test_gated_and_mixed_layers_add_up() -> None:
    x = torch.randn(7, 12)
    same_on_ranks(
        2, lambda ctx: GatedMLP(ctx, "m", 12, 10, bias=True), lambda mlp: mlp(x, batch(7))
    )
    same_on_ranks(
        2,
        lambda ctx: MoE(ctx, "m", 12, 10, 6, 3, True, layer=0, shared_size=8),
        lambda moe: moe(x, batch(7)),
    )


def test_heads_are_shared_out_and_those_of_keys_copied_where_they_are_few() -> None:
    def block(rank: int, world: int) -> AttentionBlock:
        ctx = context(Parallel(rank, world))
        shape = AttentionShape(16, 8, 2, 4, qk_norm_eps=1e-6)
        return AttentionBlock(ctx, "a", shape, Rope(ctx, "r", RopeConfig(), 4, 8), "0.self")

    found = block(3, 4)
    assert (found.attention.layer.heads, found.attention.layer.kv_heads) == (2, 1)
    spans = [spec.span(3, 4) for _, spec in found.qkv.wanted()]
    assert spans == [(24, 32), (4, 8), (4, 8)]
    assert [spec.span(3, 4) for _, spec in found.out.wanted()] == [(24, 32)]
    with pytest.raises(ConfigError, match="8 attention heads cannot be divided among 3 ranks"):
        block(0, 3)


def test_a_layer_tells_its_method_how_many_outputs_a_rank_has() -> None:
    vocab = LayerSpec("e", "embedding", 4, (13,), "vocab", world=3)
    assert [vocab.outputs(0)] == [5]
    stack = LayerSpec("q", "linear", 4, (8, 6), "column", 3, 4, copies=(1, 2))
    assert [stack.outputs(0), stack.outputs(1)] == [2, 3]
    assert LayerSpec("d", "linear", 4, (13,), "row", world=2).outputs(0) == 13


def test_blocks_of_a_vocabulary_stay_whole() -> None:
    codes = ParamSpec("weight", (300, 8), "float8_e4m3fn", 0, granule=128, uneven=True)
    scales = ParamSpec("scale", (3, 1), "float32", 0, uneven=True)
    assert [codes.span(rank, 2) for rank in range(2)] == [(0, 256), (256, 300)]
    assert [scales.span(rank, 2) for rank in range(2)] == [(0, 2), (2, 3)]


def test_what_cannot_be_shared_out_is_refused_by_name() -> None:
    parallel = Parallel(0, 2)
    leaf = GatedMLP(context(parallel), "m", 4, 7).down
    with pytest.raises(ConfigError, match=r"m.down.weight: axis 1 of size 7.* 2 ranks"):
        shard_of("m.down", leaf.wanted()[0][1], parallel)
    with pytest.raises(UnsupportedError, match="tensor parallelism over 2 ranks"):
        ConvWeight(context(parallel), "c", 4, 3)
