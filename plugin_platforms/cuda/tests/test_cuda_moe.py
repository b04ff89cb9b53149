"""Routing and the experts of a mixture against their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pegboard_platform_cuda import tiles
from pegboard_platform_cuda.kernels import experts as kernels
from pegboard_platform_cuda.kernels import grouped, sort
from pegboard_platform_cuda.kernels.described import describable
from pegboard_platform_cuda.ops import moe_experts, moe_gate, moe_route
from pegboard_platform_cuda.tiles import EXPERT_TILES, ExpertTile, expert_tile, fitted

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize(("tokens", "experts", "k"), [(0, 8, 2), (1, 128, 8), (5, 6, 3), (3, 4, 4)])
def test_tokens_go_to_their_likeliest_experts(
    tokens: int, experts: int, k: int, renormalise: bool, device: torch.device
) -> None:
    logits = torch.randn(tokens, experts, device=device)
    weights, ids = moe_route(logits, k, renormalise)
    wanted, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    wanted = wanted[:, :k] / (wanted[:, :k].sum(-1, keepdim=True) if renormalise else 1)
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32
    assert ids.tolist() == order[:, :k].tolist()
    torch.testing.assert_close(weights, wanted)


def test_equal_experts_are_taken_from_the_lowest_on(device: torch.device) -> None:
    logits = torch.zeros(2, 12, device=device).bfloat16()
    logits[1, [3, 11]] = 2.0
    _, ids = moe_route(logits, 4, True)
    assert ids.tolist() == [[0, 1, 2, 3], [3, 11, 0, 1]]


def test_many_tokens_are_routed_in_groups_and_rows_of_a_wider_matrix_are_read(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(1025, 12, device=device)[:, 3:]
    _, ids = moe_route(logits, 2, False)
    assert torch.equal(ids.long(), logits.topk(2).indices)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        (0, torch.bfloat16),
        (17, torch.bfloat16),
        (3, torch.float16),
        (19, torch.bfloat16),
        (3, torch.float32),
    ],
)
def test_a_gate_chooses_by_the_products_with_the_router(
    rows: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "GATE_ROWS", 18)
    tile = tiles.GateTile(16, 16, 32, 3, 4, 1)
    monkeypatch.setattr(tiles, "gate_tile", lambda rows: tile)
    # Small whole numbers: sums in any order are the same, and equal logits are frequent.
    x = torch.randint(-2, 3, (rows, 120), device=device).to(dtype)[:, :100]
    weight = torch.randint(-2, 3, (21, 100), device=device).to(dtype)
    weights, ids = moe_gate(x, weight, 3, True)
    wanted, order = moe_route(x.float() @ weight.float().T, 3, True)
    assert torch.equal(ids, order)
    torch.testing.assert_close(weights, wanted)


def test_a_gate_rounds_logits_as_a_product_does(device: torch.device) -> None:
    x = torch.ones(1, 16, device=device, dtype=torch.bfloat16)
    weight = torch.ones(4, 16, device=device, dtype=torch.bfloat16)
    weight[2, 0] += 2**-6  # 16 + 2^-6 has no place in 8 bits: all are equal
    _, ids = moe_gate(x, weight, 2, True)
    assert ids.tolist() == [[0, 1]]


def test_the_tile_of_a_gate_covers_every_number_of_rows() -> None:
    assert [tiles.gate_tile(rows).rows for rows in (1, 17, 33, 4096)] == [16, 32, 32, 64]


@pytest.mark.parametrize("tokens", [1, 7, 40])
@pytest.mark.parametrize("small", [4096, 0], ids=["by expert", "by chunk"])
@pytest.mark.parametrize("one_expert", [False, True])
def test_pairs_are_sorted_and_cut_into_blocks(
    tokens: int, small: int, one_expert: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "SORT_PAIRS", small)
    monkeypatch.setattr(sort, "_CHUNK", 32)
    experts, rows = 6, 16
    ids = torch.randint(0, experts, (tokens, 2), dtype=torch.int32, device=device)
    if one_expert:
        ids[:] = 4
    work = sort.sort_pairs(ids, experts, rows)
    assert sorted(work.pairs.tolist()) == list(range(2 * tokens))
    flat = ids.flatten()
    seen: list[int] = []
    for expert, start, end in zip(*(part.tolist() for part in work[1:]), strict=True):
        if expert < 0:
            continue
        here = work.pairs[start : min(start + rows, end)].tolist()
        assert here and all(flat[pair] == expert for pair in here)
        seen += here
    assert sorted(seen) == list(range(2 * tokens))


def test_the_bound_of_blocks_is_reached_and_never_passed() -> None:
    assert sort.most_blocks(8, 128, 16) == 8
    assert sort.most_blocks(2048, 128, 16) == 128 + 1920 // 16
    for pairs, experts, rows in [(5, 3, 2), (100, 7, 16), (33, 32, 16)]:
        worst = [1] * min(experts, pairs)
        worst[0] += pairs - len(worst)
        assert sum(-(-count // rows) for count in worst) == sort.most_blocks(pairs, experts, rows)


def oracle(
    x: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    out = torch.zeros_like(x, dtype=torch.float64)
    for token in range(len(x)):
        for weight, expert in zip(weights[token].double(), ids[token].long(), strict=True):
            gate, up = (gate_up[expert].double() @ x[token].double()).chunk(2)
            active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
            out[token] += weight * (down[expert].double() @ (active * up))
    return out


def check(
    tokens: int,
    dtype: torch.dtype,
    device: torch.device,
    activation: str = "silu",
    sizes: tuple[int, int] = (20, 12),
) -> None:
    experts, k, (hidden, size) = 5, 2, sizes
    x = torch.randn(tokens, hidden + 8, device=device).to(dtype)[:, :hidden]
    gate_up = (torch.randn(experts, 2 * size, hidden, device=device) / 6).to(dtype)
    down = (torch.randn(experts, hidden, size, device=device) / 5).to(dtype)
    weights, ids = moe_route(torch.randn(tokens, experts, device=device), k, True)
    found = moe_experts(x, gate_up, down, weights, ids, activation)
    wanted = oracle(x, gate_up, down, weights, ids, activation)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2 if dtype == torch.bfloat16 else 2e-3
    assert found.dtype == dtype and found.shape == x.shape
    assert ((found.double() - wanted).abs() <= tolerance * (1 + wanted.abs())).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [0, 2])
def test_few_pairs_are_multiplied_one_by_one(
    tokens: int, dtype: torch.dtype, device: torch.device
) -> None:
    check(tokens, dtype, device)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_many_pairs_are_multiplied_by_expert(
    activation: str, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "FEW_PAIRS", 0)
    tile = ExpertTile(16, 16, 32, 32, 4, 1)
    monkeypatch.setattr(kernels, "expert_tile", lambda pairs, experts: tile)
    check(1, dtype, device, activation)
    check(23, dtype, device, activation)


@pytest.mark.parametrize(
    ("sizes", "engine"), [((40, 24), True), ((64, 32), True), ((20, 24), False), ((40, 12), False)]
)
def test_weights_come_by_the_copy_engine_where_their_rows_allow_it(
    sizes: tuple[int, int],
    engine: bool,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[bool] = []
    usual = grouped.described_up

    def watched(*args: Any) -> None:
        used.append(True)
        usual(*args)

    monkeypatch.setattr(grouped, "described_up", watched)
    monkeypatch.setattr(kernels, "FEW_PAIRS", 0)
    tile = ExpertTile(16, 16, 32, 32, 4, 1, described=True)
    monkeypatch.setattr(kernels, "expert_tile", lambda pairs, experts: tile)
    check(23, torch.float16, device, sizes=sizes)
    assert bool(used) == engine


def test_wide_numbers_never_come_by_the_copy_engine() -> None:
    half = torch.zeros(2, 8, 16, dtype=torch.float16)
    assert describable(half, half[1:])
    for other in (half.float(), half[:, :, :8], half[:, :, 1:]):
        assert not describable(half, other)


def test_each_part_of_the_work_begins_where_kernels_need_not_be_compiled_anew(
    device: torch.device,
) -> None:
    work = sort.sort_pairs(torch.zeros(3, 3, dtype=torch.int32, device=device), 5, 16)
    assert [len(part) for part in work] == [9, 5, 5, 5]
    assert all(part.data_ptr() % 16 == 0 for part in work)


def test_both_activations_are_known_to_the_few(device: torch.device) -> None:
    check(2, torch.float32, device, "gelu_tanh")


def test_the_tile_grows_with_the_pairs_of_an_expert() -> None:
    rows = [expert_tile(pairs, 128).rows for pairs in (1, 64, 65, 2048, 8192, 1 << 20)]
    assert rows == sorted(rows) and rows[0] == 1 and rows[-1] == 128
    assert list(EXPERT_TILES) == sorted(EXPERT_TILES)


H200, ADA = 232_448, 101_376
"""Bytes of shared memory that a program may have."""


@pytest.mark.parametrize("tile", EXPERT_TILES.values())
def test_tiles_that_were_measured_stay_as_they_are_where_they_were(tile: ExpertTile) -> None:
    assert fitted(tile, 2, H200) == tile


@pytest.mark.parametrize("tile", EXPERT_TILES.values())
@pytest.mark.parametrize(("number", "shared"), [(4, H200), (2, ADA), (4, ADA)])
def test_tiles_are_made_to_fit_wider_numbers_and_smaller_devices(
    tile: ExpertTile, number: int, shared: int
) -> None:
    found = fitted(tile, number, shared)
    columns = max(2 * found.up, found.down)
    assert found.stages * found.depth * (found.rows + columns) * number <= shared
    assert found._replace(stages=tile.stages, depth=tile.depth) == tile
    assert found.stages >= 1 and found.depth >= 32
    assert found.depth == tile.depth or found.stages == 1
