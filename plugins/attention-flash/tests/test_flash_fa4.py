"""The calls that are made of FlashAttention 4 add up, with a stand-in for the package."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.attention import AttentionContext
from pegboard_testkit.attention_case import AttentionCase, Rows, Setting

Attention = Callable[..., tuple[torch.Tensor, torch.Tensor]]

SETTING = Setting(heads=4, kv_heads=2, head_size=64, dtype="bfloat16", kv_dtype="bfloat16")
PIECE = 32


class StandIn:
    """The package's two functions."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.calls: list[tuple[str, int]] = []

    def row(self, query: Any, key: Any, value: Any, causal: bool, scale: float) -> Any:
        """One row, ``[tokens, heads, dim]``; causal from the last token on."""
        ahead = len(key) - len(query)
        seen = torch.ones(len(query), len(key), dtype=torch.bool)
        seen = seen.tril(ahead) if causal else seen
        parts = (part.transpose(0, 1) for part in (query, key, value))
        out, lse = self.attention(*parts, seen, scale)
        return out.transpose(0, 1), lse

    def varlen(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        ends = options["cu_seqlens_q"]
        assert ends.dtype == torch.int32 and ends.equal(options["cu_seqlens_k"])
        assert int(ends[0]) == 0 and int(ends[-1]) == len(q) == len(k)
        assert options["max_seqlen_q"] == options["max_seqlen_k"] == int(ends.diff().max())
        assert options["causal"]
        self.calls.append(("varlen", len(ends) - 1))
        rows = [slice(int(a), int(b)) for a, b in itertools.pairwise(ends)]
        scale = options["softmax_scale"]
        found = [self.row(q[row], k[row], v[row], True, scale)[0] for row in rows]
        return torch.cat(found), None

    def dense(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        assert len(q) == len(k) == len(v) == 1 and options["return_lse"]
        self.calls.append(("causal" if options["causal"] else "whole", k.shape[1]))
        out, lse = self.row(q[0], k[0], v[0], options["causal"], options["softmax_scale"])
        return out[None], lse[None]


def kernel_of(ctx: AttentionContext, attention: Attention, piece: int = PIECE) -> Any:
    from pegboard_attention_flash.fa4 import Fa4, Fa4Prompts

    stand_in = StandIn(attention)
    kernel = Fa4Prompts(ctx, Fa4(stand_in.varlen, stand_in.dense), piece)
    return kernel, stand_in


def calls_of(rows: Rows, attention: Attention, setting: Setting = SETTING) -> list[tuple[str, int]]:
    """Run a step, compare it with the formula, and give the calls that it made."""
    made: list[StandIn] = []

    def factory(ctx: AttentionContext):  # type: ignore[no-untyped-def]
        kernel, stand_in = kernel_of(ctx, attention)
        made.append(stand_in)
        return kernel

    case = AttentionCase(factory, [n for _, n in rows], setting, fused_kv_write=False)
    case.fill(rows)
    for mine, wanted in zip(case.run(rows), case.expected(rows), strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=3e-2, atol=3e-2)
    return made[0].calls


def test_neighbours_without_a_past_are_one_call(attention: Attention) -> None:
    assert calls_of(((5, 5), (20, 20), (9, 9)), attention) == [("varlen", 3)]


def test_a_row_with_a_past_parts_its_neighbours(attention: Attention) -> None:
    calls = calls_of(((5, 5), (20, 29), (9, 9), (3, 3)), attention)
    assert calls == [("varlen", 1), ("causal", 29), ("varlen", 2)]


@pytest.mark.parametrize(
    ("past", "calls"),
    [
        (1, [("causal", 11)]),
        (PIECE, [("causal", PIECE + 10)]),
        (PIECE + 1, [("causal", 11), ("whole", PIECE)]),
        (3 * PIECE, [("causal", PIECE + 10), ("whole", PIECE), ("whole", PIECE)]),
    ],
)
def test_a_long_past_is_taken_in_pieces(
    past: int, calls: list[tuple[str, int]], attention: Attention
) -> None:
    assert calls_of(((10, 10 + past),), attention) == calls


@pytest.mark.parametrize("layout", range(4))
def test_pages_of_every_layout_are_read(layout: int, attention: Attention) -> None:
    calls_of(((5, 5), (7, 50)), attention, attrs.evolve(SETTING, layout=layout))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 1), (6, 2)])
def test_query_heads_share_key_heads(heads: int, kv_heads: int, attention: Attention) -> None:
    setting = attrs.evolve(
        SETTING, heads=heads, kv_heads=kv_heads, dtype="float16", kv_dtype="float16"
    )
    calls_of(((5, 5), (7, 50)), attention, attrs.evolve(setting, block_size=8, head_size=80))


def test_rows_of_few_queries_are_left_to_others(attention: Attention) -> None:
    case = AttentionCase(lambda ctx: kernel_of(ctx, attention)[0], [1], SETTING)
    wants = case.kernel.wants  # type: ignore[attr-defined]
    assert not wants(255, 100_000) and wants(256, 256)


def test_warming_up_makes_each_kind_of_call(attention: Attention) -> None:
    made: list[StandIn] = []

    def factory(ctx: AttentionContext):  # type: ignore[no-untyped-def]
        kernel, stand_in = kernel_of(ctx, attention, 512)
        made.append(stand_in)
        return kernel

    case = AttentionCase(factory, [1], SETTING)
    case.kernel.warm_up(case.layer)  # type: ignore[attr-defined]
    assert [name for name, _ in made[0].calls] == ["varlen", "causal", "whole"]


def test_the_package_is_found_if_it_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    from pegboard_attention_flash.fa4 import find_fa4

    found = SimpleNamespace(flash_attn_func=object(), flash_attn_varlen_func=object())
    package, cute = ModuleType("flash_attn"), ModuleType("flash_attn.cute")
    cute.__dict__.update(vars(found))
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.cute", cute)
    library = find_fa4()
    assert library is not None and library.varlen is found.flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    assert find_fa4() is None
