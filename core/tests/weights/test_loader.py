from __future__ import annotations

from typing import Any

import pytest
import torch

from pegboard.api.model import Parallel, RowOrder, WeightMap, WeightRule
from pegboard.api.quant import ParamSpec
from pegboard.errors import CheckpointError, ConfigError, PluginError
from pegboard.weights import ResolvedWeights, load_weights, loader, random

CPU = torch.device("cpu")
F32 = "float32"


def rules(*names: str, row_order: RowOrder | None = None) -> WeightMap:
    """Each stored module fills part n of module ``leaf``, n counting up."""
    return WeightMap(tuple(WeightRule(n, "leaf", i, row_order) for i, n in enumerate(names)))


def load(
    toys: Any, stored: dict[str, Any], wanted: list[ParamSpec], **options: Any
) -> list[torch.Tensor]:
    """Load one leaf with one parameter per part; the names of `stored` are those of the parts."""
    names = [name.rpartition(".")[0] for name in stored]
    row_order, progress = options.pop("row_order", None), options.pop("progress", None)
    resolved = ResolvedWeights(rules(*names, row_order=row_order), toys.checkpoint(stored), 1)
    model = toys.model(("leaf", list(enumerate(wanted))))
    load_weights(model, resolved, CPU, progress, **options)
    tensors: list[torch.Tensor] = model[0].runtime["weight"]
    return tensors


def test_parts_arrive_in_order_in_the_declared_dtype(toys: Any) -> None:
    q, k = torch.randn(6, 8), torch.randn(2, 8).to(torch.bfloat16)
    specs = [ParamSpec("weight", (6, 8), F32), ParamSpec("weight", (2, 8), F32)]
    loaded = load(toys, {"q.weight": q, "k.weight": k}, specs)
    assert torch.equal(loaded[0], q)
    assert torch.equal(loaded[1], k.float())


@pytest.mark.parametrize("stored", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
def test_o34i_plain_types_are_converted_to_the_stated_dtype(
    stored: torch.dtype, wanted: str, toys: Any
) -> None:
    data = torch.randn(4, 8).to(stored)
    (loaded,) = load(toys, {"a.weight": data}, [ParamSpec("weight", (4, 8), wanted)])
    assert loaded.dtype == getattr(torch, wanted)
    assert torch.equal(loaded, data.to(getattr(torch, wanted)))


def test_values_beyond_float16_are_refused_rather_than_made_infinite(toys: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'a\.weight' has values beyond float16"):
        load(toys, {"a.weight": torch.tensor([1.0, 1e6])}, [ParamSpec("weight", (2,), "float16")])


def test_scalars_and_empty_tensors_load(toys: Any) -> None:
    specs = [ParamSpec("weight", (), "bfloat16"), ParamSpec("weight", (0, 4), F32)]
    loaded = load(toys, {"a.weight": torch.tensor(0.5), "b.weight": torch.zeros(0, 4)}, specs)
    assert loaded[0].dtype == torch.bfloat16
    assert loaded[0] == 0.5
    assert loaded[1].shape == (0, 4)


def test_rows_are_put_in_the_models_order(toys: Any, even_first: RowOrder) -> None:
    data = torch.arange(6.0)
    (loaded,) = load(
        toys, {"a.weight": data}, [ParamSpec("weight", (6,), F32)], row_order=even_first
    )
    assert loaded.tolist() == [0, 2, 4, 1, 3, 5]


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_an_offset_is_added_in_the_dtype_of_the_parameter(stored: torch.dtype, toys: Any) -> None:
    data = torch.tensor([0.0, -1.0, 2.0**-7, 2.0**-12]).to(stored)
    names = WeightMap((WeightRule("a", "leaf", offset=1.0),))
    checkpoint = toys.checkpoint({"a.weight": data})
    model = toys.model(("leaf", [(0, ParamSpec("weight", (4,), F32))]))
    for _ in range(2):  # a weight update adds it once, too
        load_weights(model, ResolvedWeights(names, checkpoint, 1), CPU)
        assert model[0].runtime["weight"][0].tolist() == [1.0, 0.0, 1 + 2.0**-7, 1 + 2.0**-12]


def test_an_offset_on_integers_is_refused(toys: Any) -> None:
    names = WeightMap((WeightRule("a", "leaf", offset=1.0),))
    checkpoint = toys.checkpoint({"a.weight": torch.ones(4, dtype=torch.int32)})
    model = toys.model(("leaf", [(0, ParamSpec("weight", (4,), "int32"))]))
    with pytest.raises(PluginError, match=r"leaf: .* adds 1\.0 to 'a\.weight'"):
        load_weights(model, ResolvedWeights(names, checkpoint, 1), CPU)


def test_an_order_that_loses_a_row_is_refused(toys: Any) -> None:
    class Lossy:
        def index(self, rows: int) -> list[int]:
            return [0] * rows

    with pytest.raises(PluginError, match="no permutation"):
        load(toys, {"a.weight": torch.ones(4)}, [ParamSpec("weight", (4,), F32)], row_order=Lossy())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
def test_a_tensor_is_converted_in_tiles(
    stored: torch.dtype, toys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "_TILE_BYTES", 3 * 8 * 4)
    data = torch.randn(10, 8).to(stored)
    tensor = toys.tensor(
        "a.weight", data, {torch.float32: "F32", torch.bfloat16: "BF16"}[stored], (10, 8)
    )
    (loaded,) = load(toys, {"a.weight": tensor}, [ParamSpec("weight", (10, 8), "float16")])
    assert torch.equal(loaded, data.to(torch.float16))
    step = 3 if stored == torch.float32 else 6
    assert tensor.reads == [(at, min(at + step, 10)) for at in range(0, 10, step)]


@pytest.mark.parametrize("wanted", [F32, "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("ordered", [False, True])
def test_the_shards_of_all_ranks_make_the_whole(
    wanted: str, axis: int, ordered: bool, toys: Any, even_first: RowOrder
) -> None:
    data = torch.randn(8, 12)
    spec = ParamSpec("weight", (8, 12), wanted, shard_axis=axis, granule=2)
    order = even_first if ordered else None
    shards = [
        load(toys, {"a.weight": data}, [spec], row_order=order, parallel=Parallel(rank, 2))[0]
        for rank in range(2)
    ]
    assert [s.shape[axis] for s in shards] == [data.shape[axis] // 2] * 2
    whole = data[even_first.index(8)] if ordered else data
    assert torch.equal(torch.cat(shards, axis), whole.to(getattr(torch, wanted)))


def test_a_shard_along_rows_reads_its_own_rows_only(toys: Any) -> None:
    tensor = toys.tensor("a.weight", torch.randn(8, 4), "F32", (8, 4))
    load(toys, {"a.weight": tensor}, [ParamSpec("weight", (8, 4), F32, 0)], parallel=Parallel(1, 4))
    assert tensor.reads == [(2, 4)]


def test_an_axis_that_does_not_divide_into_granules_is_refused(toys: Any) -> None:
    spec = ParamSpec("weight", (12, 4), F32, shard_axis=0, granule=4)
    with pytest.raises(
        ConfigError, match=r"leaf\.weight: axis 0 of size 12, in units of 4, .* 2 ranks"
    ):
        load(toys, {"a.weight": torch.ones(12, 4)}, [spec], parallel=Parallel(0, 2))


def test_a_block_type_arrives_as_its_bytes(toys: Any) -> None:
    raw = torch.randint(0, 255, (4, 20), dtype=torch.uint8)
    tensor = toys.tensor("a.weight", raw, "Q4_1", (4, 32))
    (loaded,) = load(toys, {"a.weight": tensor}, [ParamSpec("weight", (4, 20), "uint8")])
    assert torch.equal(loaded, raw)


def test_a_block_type_is_not_taken_for_numbers(toys: Any) -> None:
    tensor = toys.tensor("a.weight", torch.zeros(4, 20, dtype=torch.uint8), "Q4_1", (4, 20))
    with pytest.raises(CheckpointError, match=r"'a\.weight' is stored as Q4_1.*float32"):
        load(toys, {"a.weight": tensor}, [ParamSpec("weight", (4, 20), F32)])


@pytest.mark.parametrize("stored", [(4, 9), (5, 8), (8, 4), (32,), (1, 8), (4, 8, 1)])
def test_a_wrong_shape_is_refused_with_both_shapes(stored: tuple[int, ...], toys: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(toys, {"a.weight": torch.zeros(stored)}, [ParamSpec("weight", (4, 8), F32)])
    assert f"'a.weight' has shape {list(stored)}, wanted is [4, 8]" in str(caught.value)


def test_integers_are_not_converted(toys: Any) -> None:
    data = torch.arange(4, dtype=torch.int32)
    (loaded,) = load(toys, {"a.weight": data}, [ParamSpec("weight", (4,), "int32")])
    assert torch.equal(loaded, data)
    with pytest.raises(CheckpointError, match="stored as I32, which is not converted to float32"):
        load(toys, {"a.weight": data}, [ParamSpec("weight", (4,), F32)])


@pytest.mark.parametrize("given", [torch.ones(1, 8), torch.ones(4, 8).double()])
def test_a_source_that_gives_something_else_than_it_promised_is_caught(
    given: torch.Tensor, toys: Any
) -> None:
    class Liar(toys.tensor):
        def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
            return given

    tensor = Liar("a.weight", torch.ones(4, 8), "F32", (4, 8))
    for dtype in (F32, "bfloat16"):
        with pytest.raises(PluginError, match=r"'a\.weight': the checkpoint source gave"):
            load(toys, {"a.weight": tensor}, [ParamSpec("weight", (4, 8), dtype)])


def test_all_faults_come_in_one_error_with_names_and_counts(toys: Any) -> None:
    stored = {"a.weight": torch.zeros(3), "left.weight": torch.zeros(1)}
    weight_map = WeightMap(tuple(WeightRule(n, n) for n in ("a", *(f"m{i}" for i in range(7)))))
    model = toys.model(
        *((n, [(0, ParamSpec("weight", (2,), F32))]) for n in ("a", *(f"m{i}" for i in range(7))))
    )
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, ResolvedWeights(weight_map, toys.checkpoint(stored), 1), CPU)
    text = str(caught.value)
    assert "7 tensors missing: 'm0.weight' (for m0.weight)" in text
    assert "'m4.weight'" in text
    assert "'m5.weight'" not in text
    assert "and 2 more" in text
    assert "1 tensor not as the model wants them: 'a.weight' has shape [3], wanted is [2]" in text
    assert "1 tensor not expected: 'left.weight' (in memory) is unknown" in text


def test_nothing_is_read_if_anything_is_wrong(toys: Any) -> None:
    tensor = toys.tensor("a.weight", torch.zeros(2), "F32", (2,))
    specs = [ParamSpec("weight", (2,), F32), ParamSpec("weight", (3,), F32)]
    with pytest.raises(CheckpointError):
        load(toys, {"a.weight": tensor, "b.weight": torch.zeros(2)}, specs)
    assert tensor.reads == []


def test_progress_counts_bytes_of_the_file_up_to_all_of_them(toys: Any) -> None:
    seen: list[tuple[int, int]] = []
    stored = {"a.weight": torch.ones(4, 8), "b.weight": torch.ones(2, 8).to(torch.bfloat16)}
    specs = [ParamSpec("weight", (4, 8), F32), ParamSpec("weight", (2, 8), F32)]
    load(toys, stored, specs, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(128 + 32, 128 + 32)]


def test_a_second_loading_gives_the_same_model_new_weights(toys: Any) -> None:
    data = {"a.weight": torch.ones(2)}
    model = toys.model(("leaf", [(0, ParamSpec("weight", (2,), F32))]))
    for value in (1.0, 2.0):
        data["a.weight"] = torch.full((2,), value)
        load_weights(model, ResolvedWeights(rules("a"), toys.checkpoint(data), 1), CPU)
        assert model[0].runtime["weight"][0].tolist() == [value, value]


def test_a_parameter_that_the_loader_could_not_fill_is_refused(toys: Any) -> None:
    model = toys.model()
    model.append(torch.nn.Linear(2, 2))
    with pytest.raises(PluginError, match="module '0' owns parameter 'weight'"):
        load_weights(model, ResolvedWeights(rules(), toys.checkpoint({}), 1), CPU)


def test_two_modules_with_one_prefix_are_refused(toys: Any) -> None:
    wanted = [(0, ParamSpec("weight", (2,), F32))]
    model = toys.model(("leaf", wanted), ("leaf", wanted))
    with pytest.raises(PluginError, match=r"two modules .* 'leaf'"):
        load_weights(
            model, ResolvedWeights(rules("a"), toys.checkpoint({"a.weight": torch.ones(2)}), 1), CPU
        )


def test_random_weights_are_small_reproducible_and_the_same_for_any_number_of_ranks(
    toys: Any,
) -> None:
    wanted = [
        (0, ParamSpec("weight", (64, 8), "bfloat16", 0)),
        (1, ParamSpec("weight", (64, 8), F32, 0)),
    ]
    models = [toys.model(("leaf", wanted)) for _ in range(3)]
    loader.fill_dummy(models[0], CPU)
    for rank in range(2):
        loader.fill_dummy(models[1 + rank], CPU, parallel=Parallel(rank, 2))
    whole = models[0][0].runtime["weight"]
    halves = [model[0].runtime["weight"] for model in models[1:]]
    for part in range(2):
        assert torch.equal(torch.cat([half[part] for half in halves]), whole[part])
        assert whole[part].abs().max() <= 1.01e-3
        assert whole[part].float().std() > 4e-4
    assert not torch.equal(whole[0].float(), whole[1].to(torch.bfloat16).float())


def test_random_weights_are_uniform_and_the_same_whatever_is_made_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = (300, 1000)
    found = {name: random.random_weight(name, shape, torch.float32, CPU) for name in "ab"}
    monkeypatch.setattr(random, "_TILES", {"cpu": 777})
    assert torch.equal(random.random_weight("a", shape, torch.float32, CPU), found["a"])
    counts = torch.histc(found["a"], 20, -random.DUMMY_RANGE, random.DUMMY_RANGE)
    assert (counts / counts.mean() - 1).abs().max() < 0.05
    rows = torch.stack(
        [found["a"].flatten()[1:], found["a"].flatten()[:-1], found["b"].flatten()[1:]]
    )
    assert torch.corrcoef(rows).fill_diagonal_(0).abs().max() < 0.01


@pytest.mark.gpu
def test_a_gpu_makes_the_same_random_weights() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        there = random.random_weight("a", (1000, 333), dtype, torch.device("cuda"))
        assert torch.equal(there.cpu(), random.random_weight("a", (1000, 333), dtype, CPU))
