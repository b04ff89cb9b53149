"""The real Gemma 3 file: several block types in one model, read as the reference reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from pegboard.api.quant import LayerKind, LayerSpec, LinearMethod, QuantContext, SourceTensor
from pegboard_quant_gguf.dequant import dequantise_rows
from pegboard_quant_gguf.quantizer import quantizer
from pegboard_quant_gguf.source import GgufCheckpoint, open_checkpoint

pytestmark = [pytest.mark.accept, pytest.mark.network]
ROWS = 64


@pytest.fixture(scope="module")
def gemma(gemma_path: Path) -> Iterator[GgufCheckpoint]:
    checkpoint = open_checkpoint(str(gemma_path))
    yield checkpoint
    checkpoint.close()


def reference(raw: torch.Tensor, stored_type: str) -> torch.Tensor:
    values = gguf.quants.dequantize(raw.numpy(), getattr(gguf.GGMLQuantizationType, stored_type))
    return torch.from_numpy(np.ascontiguousarray(values))


def method_for(
    checkpoint: GgufCheckpoint, names: list[str], kind: LayerKind = "linear"
) -> LinearMethod:
    found = [checkpoint.tensors[name] for name in names]
    sources = tuple((SourceTensor(t.name, t.stored_type, t.shape),) for t in found)
    sizes = tuple(tensor.shape[0] for tensor in found)
    layer = LayerSpec("x", kind, found[0].shape[1], sizes, sources=sources)
    method = quantizer(QuantContext("float32")).method(layer)
    assert method is not None
    return method


def test_every_tensor_has_the_values_of_the_reference(gemma: GgufCheckpoint) -> None:
    seen: Counter[str] = Counter()
    for tensor in gemma.tensors.values():
        if not tensor.type.plain:
            raw = tensor.read(tensor.shape[0] - ROWS, tensor.shape[0])
            found = dequantise_rows(raw, tensor.stored_type)
            assert torch.equal(found, reference(raw, tensor.stored_type)), tensor.name
            seen[tensor.stored_type] += 1
    assert seen == {"Q5_0": 81, "Q4_K": 27, "Q8_0": 10, "Q6_K": 9}


@pytest.mark.parametrize(
    "parts",
    [("attn_q", "attn_k", "attn_v"), ("attn_output",), ("ffn_gate", "ffn_up"), ("ffn_down",)],
)
def test_layers_of_mixed_types_give_the_products_of_the_reference(
    gemma: GgufCheckpoint, parts: tuple[str, ...]
) -> None:
    names = [f"blk.0.{part}.weight" for part in parts]
    method = method_for(gemma, names)
    raw = [gemma.tensors[name].read() for name in names]
    params = method.finalise({"weight": raw}, None)
    kinds = [gemma.tensors[name].stored_type for name in names]
    expected = torch.cat([reference(rows, kind) for rows, kind in zip(raw, kinds, strict=True)])
    assert torch.equal(method.dequantise(params), expected)
    x = torch.randn(3, expected.shape[1], generator=torch.Generator().manual_seed(0))
    product = x.double() @ expected.double().T
    assert (method.apply(params, x).double() - product).norm() <= 1e-6 * product.norm()


def test_the_embedding_is_looked_up_row_by_row(gemma: GgufCheckpoint) -> None:
    method = method_for(gemma, ["token_embd.weight"], "embedding")
    raw = gemma.tensors["token_embd.weight"].read()
    ids = torch.tensor([0, 2, 262143, 9259, 2])
    expected = reference(raw[ids], "Q8_0")
    params = method.finalise({"weight": [raw]}, None)
    assert torch.equal(method.lookup(params, ids), expected)
