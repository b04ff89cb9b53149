"""A writer of safetensors files that can also write wrong ones, and a toy family to load them
with."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch

from pegboard.api.checkpoint import StoredTensor
from pegboard.api.model import ModelFacts, ModelFamily, RowOrder, Skip, WeightMap, WeightRule
from pegboard.api.quant import LayerSpec, ParamSpec
from pegboard.nn import Weighted

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint8: "U8",
}


@attrs.frozen
class Writer:
    """Writes one safetensors file; every step of it can be replaced by a wrong one."""

    def __call__(
        self,
        path: Path,
        tensors: Mapping[str, torch.Tensor],
        *,
        change: Callable[[dict[str, Any]], Any] | None = None,
        header: bytes | None = None,
        length: int | None = None,
        cut: int = 0,
        tail: bytes = b"",
    ) -> Path:
        """`change` edits the header before it is written (or returns another), `header` replaces
        its bytes, `length` the stated length; `cut` bytes are taken off the end and `tail` is put
        behind."""
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        data = b""
        for name, tensor in tensors.items():
            raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            span = [len(data), len(data) + len(raw)]
            dtype = NAMES[tensor.dtype]
            entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": span}
            data += raw
        changed = change(entries) if change is not None else None
        text = header if header is not None else json.dumps(changed or entries).encode()
        whole = struct.pack("<Q", len(text) if length is None else length) + text + data
        path.write_bytes(whole[: len(whole) - cut] + tail)
        return path


@pytest.fixture
def write_file() -> Writer:
    return Writer()


@pytest.fixture
def write_checkpoint(write_file: Writer) -> Callable[..., Path]:
    """A directory with ``config.json`` and one safetensors file."""

    def write(folder: Path, tensors: Mapping[str, torch.Tensor], **faults: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        config = {"architectures": ["ToyModel"], **faults.pop("config", {})}
        (folder / "config.json").write_text(json.dumps(config))
        write_file(folder / "model.safetensors", tensors, **faults)
        return folder

    return write


@pytest.fixture
def write_shards(write_file: Writer) -> Callable[..., Path]:
    """A directory with an index and one file for each mapping of tensors."""

    def write(folder: Path, *shards: Mapping[str, torch.Tensor]) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"architectures": ["ToyModel"]}))
        weight_map = {}
        for number, tensors in enumerate(shards, 1):
            name = f"model-{number:05}-of-{len(shards):05}.safetensors"
            write_file(folder / name, tensors)
            weight_map.update(dict.fromkeys(tensors, name))
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return write


class ToyLeaf(Weighted):
    """Keeps what it is given."""

    def __init__(self, prefix: str, wanted: Sequence[tuple[int, ParamSpec]]) -> None:
        super().__init__(prefix)
        self._wanted = tuple(wanted)

    def wanted(self) -> tuple[tuple[int, ParamSpec], ...]:
        return self._wanted

    def take(self, loaded: Mapping[str, Sequence[torch.Tensor]]) -> None:
        self.runtime = {name: list(tensors) for name, tensors in loaded.items()}


@attrs.frozen
class MemoryTensor:
    """A stored tensor that lies in memory; it counts the rows that are asked for."""

    name: str
    data: torch.Tensor
    stored_type: str
    shape: tuple[int, ...]
    file: str = "memory"
    reads: list[tuple[int, int]] = attrs.field(factory=list)

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def read(self, start: int = 0, stop: int | None = None) -> torch.Tensor:
        if not self.shape:
            return self.data.clone()
        self.reads.append((start, len(self.data) if stop is None else stop))
        return self.data[start:stop].clone()


@attrs.frozen
class MemoryCheckpoint:
    """As much of a checkpoint as the loader looks at."""

    tensors: Mapping[str, StoredTensor]
    path: str = "memory"
    config: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Toys:
    """What tests of the loader are made of."""

    leaf: type[ToyLeaf] = ToyLeaf
    tensor: type[MemoryTensor] = MemoryTensor

    def checkpoint(self, tensors: Mapping[str, torch.Tensor | MemoryTensor]) -> MemoryCheckpoint:
        """Plain tensors by name."""
        return MemoryCheckpoint(
            {
                name: MemoryTensor(name, data, NAMES[data.dtype], tuple(data.shape))
                if isinstance(data, torch.Tensor)
                else data
                for name, data in tensors.items()
            }
        )

    def model(self, *leaves: tuple[str, Sequence[tuple[int, ParamSpec]]]) -> torch.nn.ModuleList:
        return torch.nn.ModuleList([ToyLeaf(prefix, wanted) for prefix, wanted in leaves])


@pytest.fixture
def toys() -> Toys:
    return Toys()


@attrs.frozen
class EvenFirst:
    """Rows 0, 2, 4, … then 1, 3, 5, …"""

    def index(self, rows: int) -> Sequence[int]:
        return [*range(0, rows, 2), *range(1, rows, 2)]


@pytest.fixture
def even_first() -> RowOrder:
    return EvenFirst()


@attrs.frozen
class ToyConfig:
    """Sizes of the toy family, read from ``config.json``."""

    facts: ModelFacts
    tied: bool


class ToyModel(torch.nn.Module):
    """Embedding, per layer a stack of two and a norm, and a head unless tied."""

    def __init__(self, ctx: Any) -> None:
        super().__init__()
        self.ctx = ctx
        hidden, vocab = ctx.config.facts.hidden_size, ctx.config.facts.vocab_size
        leaves = [self._linear("embed", "embedding", (vocab,), hidden)]
        for i in range(ctx.config.facts.layers):
            leaves.append(self._linear(f"layers.{i}.pair", "linear", (6, 4), hidden))
            norm = ParamSpec("weight", (hidden,), "float32")
            leaves.append(ToyLeaf(f"layers.{i}.norm", [(0, norm)]))
        if not ctx.config.tied:
            leaves.append(self._linear("head", "head", (vocab,), hidden))
        self.leaves = leaves
        self.registered = torch.nn.ModuleList(leaves)

    def _linear(self, prefix: str, kind: Any, parts: tuple[int, ...], hidden: int) -> ToyLeaf:
        spec = LayerSpec(
            prefix, kind, hidden, parts, sources=tuple(self.ctx.sources(prefix, len(parts)))
        )
        method = self.ctx.method(spec)
        wanted = [(part, p) for part in range(len(parts)) for p in method.parameters(part)]
        return ToyLeaf(prefix, wanted)

    def weights(self) -> dict[str, list[torch.Tensor]]:
        return {
            leaf.prefix: [t for name in sorted(leaf.runtime) for t in leaf.runtime[name]]
            for leaf in self.leaves
        }


def read_toy_config(source: Any) -> ToyConfig:
    raw = {"layers": 2, "hidden": 8, "vocab": 16, "tied": False, "dtype": "float32", **source.raw}
    facts = ModelFacts(
        raw["layers"], raw["hidden"], raw["vocab"], 64, (), stored_dtype=raw["dtype"]
    )
    return ToyConfig(facts, raw["tied"])


def toy_weight_map(config: ToyConfig, kind: str) -> WeightMap:
    rules = [
        WeightRule("model.embed", "embed"),
        WeightRule("model.layers.{i}.a", "layers.{i}.pair", 0),
        WeightRule("model.layers.{i}.b", "layers.{i}.pair", 1),
        WeightRule("model.layers.{i}.norm", "layers.{i}.norm"),
    ]
    if config.tied:
        return WeightMap(tuple(rules), (Skip("lm_head.*", "the head is tied to the embedding"),))
    return WeightMap((*rules, WeightRule("lm_head", "head")), (Skip("*.rotary.inv", "computed"),))


@pytest.fixture
def toy_family(monkeypatch: pytest.MonkeyPatch) -> ModelFamily:
    """The toy family; its module exists while the test runs."""
    module: Any = ModuleType("toy_family_for_tests")
    module.config, module.weights, module.build = read_toy_config, toy_weight_map, ToyModel
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return ModelFamily(
        name="toy",
        architectures={"hf": ("ToyModel",)},
        config=f"{module.__name__}:config",
        weights=f"{module.__name__}:weights",
        build=f"{module.__name__}:build",
    )


@pytest.fixture
def toy_tensors() -> Callable[..., dict[str, torch.Tensor]]:
    """All tensors of a toy checkpoint, random."""

    def make(
        layers: int = 2, head: bool = True, dtype: torch.dtype = torch.float32
    ) -> dict[str, torch.Tensor]:
        draws = torch.Generator().manual_seed(7)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draws).to(dtype)

        tensors = {"model.embed.weight": draw(16, 8)}
        for i in range(layers):
            tensors[f"model.layers.{i}.a.weight"] = draw(6, 8)
            tensors[f"model.layers.{i}.b.weight"] = draw(4, 8)
            tensors[f"model.layers.{i}.norm.weight"] = draw(8)
        return tensors | ({"lm_head.weight": draw(16, 8)} if head else {})

    return make
