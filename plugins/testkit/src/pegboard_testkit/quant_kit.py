"""Conformance kit for the surface *quantisation*: formats of linear layers, embeddings and heads.

A test file of a format subclasses `QuantKit`, names the descriptor, and says how one part of a
layer is stored and which numbers that means::

    class TestMyFormat(QuantKit):
        format = MY_FORMAT

        def part(self, case, outputs, seed):
            values = numbers(outputs, self.in_features, seed)
            codes, scale = rounded(values)
            tensors = {"weight": ("I8", codes), "weight_scale": ("F32", scale)}
            return StoredPart(tensors, codes.double() * scale.double())

Layers of one part and of several are built, loaded, multiplied and updated as the engine does it,
on the CPU, and compared with the numbers in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from pegboard.api.quant import (
    LayerKind,
    LayerSpec,
    LinearMethod,
    ParallelRole,
    QuantContext,
    QuantFormat,
    SourceTensor,
)
from pegboard.errors import UnsupportedError
from pegboard_testkit.applicable import leave_out
from pegboard_testkit.own_settings import OwnSettings
from pegboard_testkit.quant_case import StoredPart, delivered, shard, weight

__all__ = ["QuantKit", "StoredPart"]


class QuantKit(OwnSettings):
    """Tests of a format; subclass it in a test file under a name that begins with ``Test``.

    `format` and `part` must be given; the other attributes may be changed.
    """

    format: QuantFormat
    """The descriptor."""
    cases: Sequence[str] = ("stored",)
    """Names of the ways of storing that are tried; `part` and `config` get them."""
    in_features = 256
    """Inputs of the layers."""
    part_sizes: Sequence[int] = (64, 32, 32)
    """Outputs of the parts of a stack."""
    world = 2
    """Ranks that layers are divided among; 1 where the format cannot be divided."""
    tolerances: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
    """Largest error of a product by compute dtype, as a share of the norm of the right one."""
    exactness = 1e-6
    """The same for `dequantise`."""
    platform: Mapping[str, Any] = {"platform": "null"}
    """Facts that the quantizer is told."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        covered = getattr(cls, "format", None)
        leave_out(
            cls,
            covered is not None and "embedding" not in covered.covers,
            "test_an_embedding_gives_its_rows",
        )
        leave_out(
            cls,
            cls.world == 1,
            "test_columns_divided_among_ranks_are_those_of_the_whole",
            "test_rows_divided_among_ranks_add_up_to_the_whole",
        )

    def part(self, case: str, outputs: int, seed: int) -> StoredPart:
        """One part with `outputs` outputs; equal arguments give equal parts."""
        raise AssertionError(f"{type(self).__name__} must define part(case, outputs, seed)")

    def config(self, case: str) -> Mapping[str, Any]:
        """``quantization_config`` of the checkpoint."""
        return {}

    def test_the_descriptor_can_be_asked_for(self) -> None:
        assert self.format.claims(), (
            "without methods and stored_types no checkpoint can ask for the format"
        )
        types = {t for case in self.cases for t, _ in self.part(case, 32, 0).tensors.values()}
        assert types & set(self.format.stored_types) or self.format.methods, (
            f"the parts are stored as {sorted(types)}, none of which stored_types names"
        )

    def test_parameters_describe_what_is_stored(self) -> None:
        for case, parts in self._stacks():
            method = self._method(case, parts, "float32")
            for number, part in enumerate(parts):
                for spec in method.parameters(number):
                    assert spec.name in part.tensors, f"{case}: no tensor {spec.name!r} is stored"
                    shape = tuple(part.tensors[spec.name][1].shape)
                    assert spec.shape == shape, f"{case}: {spec} for a tensor of shape {shape}"

    def test_dequantise_gives_the_stored_numbers(self) -> None:
        for case, parts in self._stacks():
            method = self._method(case, parts, "float32")
            found = method.dequantise(method.finalise(self._loaded(method, parts), None))
            assert found.dtype == torch.float32, f"{case}: dequantise gives {found.dtype}"
            self._near(f"{case}: dequantise", found, weight(parts), self.exactness)

    def test_apply_is_the_product_with_the_stored_numbers(self) -> None:
        for case, parts in self._stacks():
            for dtype, tolerance in self.tolerances.items():
                method = self._method(case, parts, dtype)
                params = method.finalise(self._loaded(method, parts), None)
                for rows in (0, 1, 3, 50):
                    x = self._inputs(rows, dtype)
                    y = method.apply(params, x)
                    wanted = (rows, sum(len(part.weight) for part in parts))
                    where = f"{case}, {dtype}, {rows} rows"
                    assert tuple(y.shape) == wanted, f"{where}: {tuple(y.shape)}, not {wanted}"
                    assert y.dtype == x.dtype, f"{where}: {y.dtype} for {x.dtype}"
                    self._near(where, y, x.double() @ weight(parts).T, tolerance)

    def test_a_row_does_not_depend_on_its_batch_mates(self) -> None:
        for case, parts in self._stacks():
            method = self._method(case, parts, "float32")
            params = method.finalise(self._loaded(method, parts), None)
            x = self._inputs(50, "float32")
            whole = method.apply(params, x.clone())
            spoilt = x.clone()
            spoilt[1:] *= 100
            mixed = method.apply(params, spoilt)
            self._near(f"{case}: the first row", mixed[:1], whole[:1].double(), 1e-5)

    def test_a_weight_update_writes_into_the_same_memory(self) -> None:
        for case, parts in self._stacks():
            method = self._method(case, parts, "float32")
            params = method.finalise(self._loaded(method, parts), None)
            places = _places(params)
            fresh = [self.part(case, len(p.weight), 100 + n) for n, p in enumerate(parts)]
            updated = method.finalise(self._loaded(method, fresh), params)
            assert _places(updated) == places, f"{case}: parameters moved in an update"
            self._near(
                f"{case}: after an update",
                method.dequantise(updated),
                weight(fresh),
                self.exactness,
            )

    def test_an_embedding_gives_its_rows(self) -> None:
        for case in self.cases:
            parts = [self.part(case, 64, 3)]
            for dtype, tolerance in self.tolerances.items():
                method = self._method(case, parts, dtype, kind="embedding", role="vocab")
                params = method.finalise(self._loaded(method, parts), None)
                ids = torch.tensor([63, 0, 31, 0])
                found = method.lookup(params, ids)
                assert found.dtype in (getattr(torch, dtype), torch.float32), found.dtype
                self._near(f"{case}, {dtype}: lookup", found, parts[0].weight[ids], tolerance)
                assert tuple(method.lookup(params, ids[:0]).shape) == (0, self.in_features)

    def test_columns_divided_among_ranks_are_those_of_the_whole(self) -> None:
        for case, parts in self._divided():
            x = self._inputs(5, "float32")
            shares: list[list[torch.Tensor]] = [[] for _ in parts]
            for rank in range(self.world):
                spec = self._layer(parts, role="column", rank=rank, world=self.world)
                y = self._apply(case, spec, parts, x)
                sizes = [spec.outputs(number) for number in range(len(parts))]
                for number, share in enumerate(y.split(sizes, dim=1)):
                    shares[number].append(share)
            joined = torch.cat([torch.cat(share, dim=1) for share in shares], dim=1)
            tolerance = self.tolerances["float32"]
            self._near(f"{case}: columns", joined, x.double() @ weight(parts).T, tolerance)

    def test_rows_divided_among_ranks_add_up_to_the_whole(self) -> None:
        for case, parts in self._divided():
            x = self._inputs(5, "float32")
            total = torch.zeros(5, sum(len(part.weight) for part in parts))
            for rank, share in enumerate(x.chunk(self.world, dim=1)):
                spec = self._layer(parts, role="row", rank=rank, world=self.world)
                total += self._apply(case, spec, parts, share.contiguous())
            tolerance = self.tolerances["float32"]
            self._near(f"{case}: rows", total, x.double() @ weight(parts).T, tolerance)

    def test_an_unknown_stored_type_is_refused_or_left_to_the_core(self) -> None:
        strange = SourceTensor("model.x.weight", "ODD_7", (64, self.in_features))
        layer = LayerSpec("layers.7.odd", "linear", self.in_features, (64,), sources=((strange,),))
        context = self._context("float32", self.cases[0])
        said = "ODD_7"
        try:
            accepted = self.format.quantizer.load()(context).method(layer) is not None
        except UnsupportedError as error:
            accepted, said = False, str(error)
        assert not accepted, "a stored type that nobody knows was accepted"
        assert "ODD_7" in said, f"the refusal does not name the type: {said}"

    # What the tests are made of

    def _stacks(self) -> Iterator[tuple[str, list[StoredPart]]]:
        """Each case as a layer of one part, and as a stack."""
        for case in self.cases:
            for sizes in ([64], list(self.part_sizes)):
                yield case, [self.part(case, size, n) for n, size in enumerate(sizes)]

    def _divided(self) -> Iterator[tuple[str, list[StoredPart]]]:
        yield from self._stacks()

    def _layer(
        self,
        parts: Sequence[StoredPart],
        *,
        kind: LayerKind = "linear",
        role: ParallelRole = "column",
        rank: int = 0,
        world: int = 1,
    ) -> LayerSpec:
        sources = tuple(
            tuple(
                SourceTensor(f"model.p{number}.{name}", stored, tuple(tensor.shape))
                for name, (stored, tensor) in part.tensors.items()
            )
            for number, part in enumerate(parts)
        )
        sizes = tuple(len(part.weight) for part in parts)
        return LayerSpec(
            "layers.0.x", kind, self.in_features, sizes, role, rank, world, sources=sources
        )

    def _method(
        self, case: str, parts: Sequence[StoredPart], dtype: str, **layer: Any
    ) -> LinearMethod:
        return self._method_of(case, self._layer(parts, **layer), dtype)

    def _method_of(self, case: str, layer: LayerSpec, dtype: str) -> LinearMethod:
        context = self._context(dtype, case)
        method: LinearMethod | None = self.format.quantizer.load()(context).method(layer)
        assert method is not None, f"{case}: the quantizer leaves the layer to the core"
        return method

    def _context(self, dtype: str, case: str) -> QuantContext:
        own = self.handed("quant", self.format.name)
        return QuantContext(dtype, self.platform, self.config(case), **own)

    def _apply(
        self, case: str, layer: LayerSpec, parts: Sequence[StoredPart], x: torch.Tensor
    ) -> torch.Tensor:
        method = self._method_of(case, layer, "float32")
        return method.apply(method.finalise(self._loaded(method, parts, layer), None), x)

    def _loaded(
        self, method: LinearMethod, parts: Sequence[StoredPart], layer: LayerSpec | None = None
    ) -> dict[str, list[torch.Tensor]]:
        """What the loader would deliver: the rank's shards, plain types in the wanted dtype."""
        loaded: dict[str, list[torch.Tensor]] = {}
        for number, part in enumerate(parts):
            for spec in method.parameters(number):
                shared = spec if layer is None else layer.shared(number, spec)
                stored, tensor = part.tensors[spec.name]
                own = shard(tensor, shared, layer)
                loaded.setdefault(spec.name, []).append(delivered(own, spec, stored))
        return loaded

    def _inputs(self, rows: int, dtype: str) -> torch.Tensor:
        draw = torch.Generator().manual_seed(rows)
        return torch.randn(rows, self.in_features, generator=draw).to(getattr(torch, dtype))

    def _near(self, what: str, found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
        assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)}, {tuple(wanted.shape)}"
        difference = float((found.double() - wanted).norm())
        norm = float(wanted.norm())
        assert difference <= tolerance * norm, (
            f"{what}: the error is {difference / norm:.2g} of the norm, allowed is {tolerance:.2g}"
        )


def _places(params: Mapping[str, Any]) -> dict[str, int]:
    return {
        name: value.data_ptr() for name, value in params.items() if isinstance(value, torch.Tensor)
    }
