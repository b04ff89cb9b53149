"""A model on a small paged cache, and transformers' answer to the same tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pegboard.api.attention import AttentionContext, AttentionInputs, AttentionLayer, AttentionStep
from pegboard.api.kv import KVGroup, KVLayout, KVSpec, KVTensors
from pegboard.api.model import Batch, BuildContext, ConfigInput, GroupBatch, WeightMap
from pegboard.nn import OpTable, PlainMethod, Weighted
from pegboard_model_llama.config import LlamaConfig, read_config
from pegboard_model_llama.model import Llama, build
from pegboard_model_llama.weights import weight_map

CPU = torch.device("cpu")
BLOCK = 4


class ByDefinition:
    """An attention kernel of a few lines: every row alone, every token gathered by its place."""

    def __init__(self, ctx: AttentionContext) -> None:
        self.ctx = ctx

    def layouts(self, spec: KVSpec) -> tuple[KVLayout, ...]:
        return (KVLayout("plain", ("kv", "block", "token", "head", "dim")),)

    def plan(self, step: AttentionStep) -> AttentionStep:
        return step

    def forward(
        self, layer: AttentionLayer, inputs: AttentionInputs, kv: KVTensors, step: AttentionStep
    ) -> torch.Tensor:
        tokens = kv.data.view(2, -1, layer.kv_heads, layer.head_size)
        tokens[0, step.slots], tokens[1, step.slots] = inputs.key, inputs.value
        group = layer.heads // layer.kv_heads
        parts = []
        queries = inputs.query.split(list(step.query_lens))
        for query, length, blocks in zip(queries, step.kv_lens, step.block_lists, strict=True):
            places = (torch.tensor(blocks)[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
            seen = tokens[:, places[:length]].repeat_interleave(group, 2).transpose(1, 2)
            begin = length - len(query)
            mask = torch.ones(len(query), length, dtype=torch.bool).tril(begin)
            parts.append(
                F.scaled_dot_product_attention(
                    query.transpose(0, 1), seen[0], seen[1], attn_mask=mask, scale=layer.scale
                ).transpose(0, 1)
            )
        return torch.cat(parts)


def attention_kernels() -> dict[str, Callable[[AttentionContext], Any]]:
    """The kernel above, and those of the installed backends for the CPU."""
    kernels: dict[str, Callable[[AttentionContext], Any]] = {"by definition": ByDefinition}
    for entry in entry_points(group="pegboard.attention"):
        for backend in entry.load().pegboard_attention_backends():
            if "cpu" in backend.platforms:
                kernels[backend.name] = backend.kernel.load()
    return kernels


KERNELS = attention_kernels()


def fill(model: Llama, names: WeightMap, tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Hand every leaf its tensors; gives the names that were used."""
    rules = {}
    layers = len(model.layers)
    for rule in names.rules:
        for i in range(layers) if "{i}" in rule.target else (0,):
            target = rule.target.replace("{i}", str(i))
            rules[target, rule.part] = (rule.source.replace("{i}", str(i)), rule.row_order)
    used = set()
    for leaf in model.modules():
        if not isinstance(leaf, Weighted) or not leaf.wanted():
            continue
        loaded: dict[str, list[torch.Tensor]] = {}
        for part, spec in leaf.wanted():
            source, order = rules[leaf.prefix, part]
            tensor = tensors[f"{source}.{spec.name}"].to(getattr(torch, spec.dtype))
            assert tuple(tensor.shape) == spec.shape, (leaf.prefix, part)
            if order is not None:
                tensor = tensor[list(order.index(tensor.shape[0]))]
            loaded.setdefault(spec.name, []).append(tensor.clone())
            used.add(f"{source}.{spec.name}")
        leaf.finalise(loaded)
    return used


class Bench:
    """One model with its cache; `logits` runs rows in steps of the given chunks."""

    def __init__(
        self,
        config: LlamaConfig,
        kind: str,
        tensors: Mapping[str, torch.Tensor],
        kernel: str = "by definition",
        max_positions: int | None = None,
    ) -> None:
        self.config = config
        ctx = BuildContext(
            config=config,
            dtype=torch.float32,
            device=CPU,
            ops=OpTable.plain(),
            method=lambda layer: PlainMethod(layer, torch.float32),
            sources=lambda prefix, parts: (),
            max_positions=max_positions,
        )
        self.model = build(ctx).eval()
        self.used = fill(self.model, weight_map(config, kind), tensors)
        self.kernel = KERNELS[kernel]
        self.step_count = 0

    def refill(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """A weight update."""
        fill(self.model, weight_map(self.config, "hf"), tensors)

    def logits(
        self,
        rows: Sequence[Sequence[int]],
        chunks: Sequence[int] | None = None,
        first_position: int = 0,
    ) -> list[torch.Tensor]:
        """``[len(row), vocab]`` per row; all rows advance together by `chunks`."""
        longest = max(map(len, rows))
        spec = self.config.facts.kv_slots[0].spec
        assert spec is not None
        slots = tuple(slot.key for slot in self.config.facts.kv_slots)
        group = KVGroup(0, spec, BLOCK, slots)
        kernel = self.kernel(AttentionContext(group, torch.float32, CPU, len(rows), 4096))
        per_row = -(-longest // BLOCK)
        order = (torch.randperm(per_row * len(rows)) + 1).split(per_row)
        layout = kernel.layouts(spec)[0]
        shape = layout.shape(spec, per_row * len(rows) + 1, BLOCK)
        kv = {key: KVTensors(key, 0, spec, layout, torch.full(shape, torch.nan)) for key in slots}
        found: list[list[torch.Tensor]] = [[] for _ in rows]
        done = 0
        for chunk in chunks or (longest,):
            parts = [row[done : done + chunk] for row in rows]
            step = _step(parts, [min(done + chunk, len(row)) for row in rows], order)
            positions = torch.cat([torch.arange(len(part)) + done for part in parts])
            self._run(parts, positions + first_position, step, kernel, kv, found)
            done += chunk
        assert done >= longest
        return [torch.cat(pieces) for pieces in found]

    def _run(
        self,
        parts: Sequence[Sequence[int]],
        positions: torch.Tensor,
        step: AttentionStep,
        kernel: Any,
        kv: Mapping[str, KVTensors],
        found: list[list[torch.Tensor]],
    ) -> None:
        ids = torch.tensor([token for part in parts for token in part], dtype=torch.int64)
        groups = [GroupBatch(kernel, kernel.plan(step))]
        batch = Batch(ids, positions, torch.arange(len(ids)), groups, kv)
        with torch.inference_mode():
            logits = self.model.logits(self.model(batch), batch)
        for pieces, piece in zip(found, logits.split([len(p) for p in parts]), strict=True):
            pieces.append(piece)
        self.step_count += 1


def _step(
    parts: Sequence[Sequence[int]], lengths: list[int], order: Sequence[torch.Tensor]
) -> AttentionStep:
    places = []
    for part, length, blocks in zip(parts, lengths, order, strict=True):
        tokens = torch.arange(length - len(part), length)
        places.append(blocks[tokens // BLOCK] * BLOCK + tokens % BLOCK)
    counts = [len(part) for part in parts]
    return AttentionStep(
        counts,
        lengths,
        [blocks.tolist() for blocks in order],
        torch.tensor([0, *counts]).cumsum(0).to(torch.int32),
        torch.tensor(lengths, dtype=torch.int32),
        torch.stack(list(order)).to(torch.int32),
        torch.cat(places),
    )


@pytest.fixture(scope="session")
def bench() -> type[Bench]:
    return Bench


@pytest.fixture(scope="session")
def kernel_names() -> list[str]:
    return list(KERNELS)


@pytest.fixture(scope="session")
def read_hf() -> Callable[..., LlamaConfig]:
    """Reads a configuration as it would come back from a file."""

    def read(raw: Mapping[str, Any], architecture: str = "LlamaForCausalLM") -> LlamaConfig:
        return read_config(ConfigInput(json.loads(json.dumps(raw)), "hf", architecture))

    return read
