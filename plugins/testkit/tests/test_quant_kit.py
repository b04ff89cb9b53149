"""The quantisation kit passes a right format and fails wrong ones, each in its own test."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

from pegboard.api.quant import LayerSpec, ParamSpec, QuantContext, QuantFormat
from pegboard.errors import UnsupportedError
from pegboard_testkit.quant_kit import QuantKit, StoredPart

FORMAT = QuantFormat("halves", "halves_of_tests:Halves", ("halves",), ("I8",), ("linear",))


class Halves:
    """Whole numbers of one byte, each of which means half of it."""

    def __init__(self, ctx: QuantContext) -> None:
        self.dtype = ctx.dtype

    def method(self, layer: LayerSpec) -> Halves | None:
        types = {source.stored_type for part in layer.sources for source in part}
        if types != {"I8"}:
            raise UnsupportedError(f"{layer.prefix} is stored as {', '.join(sorted(types))}")
        self.layer = layer
        return self

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        axis = {"column": 0, "row": 1}.get(self.layer.role)
        shape = (self.layer.part_sizes[part], self.layer.in_features)
        return (ParamSpec("weight", shape, "int8", shard_axis=axis),)

    def finalise(
        self, loaded: Mapping[str, Sequence[torch.Tensor]], runtime: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        joined = torch.cat(list(loaded["weight"]))
        if runtime is None:
            return {"codes": joined}
        runtime["codes"].copy_(joined)
        return runtime

    def dequantise(self, params: Mapping[str, Any]) -> torch.Tensor:
        values: torch.Tensor = params["codes"].float() / 2
        return values

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        return (x.float() @ self.dequantise(params).T).to(x.dtype)


class Moving(Halves):
    """An update makes new tensors."""

    def finalise(self, loaded: Any, runtime: Any) -> Mapping[str, Any]:
        return super().finalise(loaded, None)


class Swapped(Halves):
    """The parts of a stack in the wrong order."""

    def finalise(self, loaded: Any, runtime: Any) -> Mapping[str, Any]:
        return super().finalise({"weight": loaded["weight"][::-1]}, runtime)


class Coarse(Halves):
    """Multiplies too coarsely."""

    def apply(self, params: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
        return super().apply(params, (x * 8).round() / 8)


class Undivided(Halves):
    """Each rank gets everything."""

    def parameters(self, part: int) -> tuple[ParamSpec, ...]:
        shape = (self.layer.part_sizes[part], self.layer.in_features)
        return (ParamSpec("weight", shape, "int8"),)


class Credulous(Halves):
    """Takes any type."""

    def method(self, layer: LayerSpec) -> Halves | None:
        self.layer = layer
        return self


class HalvesKit(QuantKit):
    format = FORMAT

    def part(self, case: str, outputs: int, seed: int) -> StoredPart:
        draw = torch.Generator().manual_seed(seed)
        shape = (outputs, self.in_features)
        codes = torch.randint(-9, 9, shape, generator=draw, dtype=torch.int8)
        return StoredPart({"weight": ("I8", codes)}, codes.double() / 2)


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    def put(quantizer: Any) -> None:
        module = types.ModuleType("halves_of_tests")
        module.Halves = quantizer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "halves_of_tests", module)

    return put


class TestHalves(HalvesKit):
    @pytest.fixture(autouse=True)
    def served(self, serve: Callable[[Any], None]) -> None:
        serve(Halves)


@pytest.mark.parametrize(
    ("quantizer", "test", "said"),
    [
        (Moving, "test_a_weight_update_writes_into_the_same_memory", "parameters moved"),
        (Swapped, "test_dequantise_gives_the_stored_numbers", "of the norm"),
        (Coarse, "test_apply_is_the_product_with_the_stored_numbers", "of the norm"),
        (Credulous, "test_an_unknown_stored_type_is_refused_or_left_to_the_core", "was accepted"),
    ],
)
def test_a_wrong_format_fails(
    serve: Callable[[Any], None], quantizer: Any, test: str, said: str
) -> None:
    serve(quantizer)
    with pytest.raises(AssertionError, match=said):
        getattr(HalvesKit(), test)()


def test_a_format_that_does_not_divide_fails(serve: Callable[[Any], None]) -> None:
    serve(Undivided)
    with pytest.raises((AssertionError, RuntimeError)):
        HalvesKit().test_columns_divided_among_ranks_are_those_of_the_whole()
