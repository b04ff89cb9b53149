"""The surface *quantisation*: which layers are e4m3, how they are read and where they multiply."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from pegboard.api.checkpoint import PLAIN_TYPES
from pegboard.api.quant import LayerSpec, LinearMethod, QuantContext, SourceTensor
from pegboard.errors import CheckpointError, UnsupportedError
from pegboard_quant_fp8.config import read_plan
from pegboard_quant_fp8.method import OnlineMethod, StoredMethod, suffix
from pegboard_quant_fp8.products import Products, TiledProducts
from pegboard_quant_fp8.schemes import Activations, Scheme, WeightScales

__all__ = ["Fp8Quantizer", "quantizer"]

STORED = "F8_E4M3"
_CAPABILITY = (8, 9)
"""The first CUDA devices that multiply 8-bit floats."""
_ONLINE = Scheme("channel", "dynamic")
"""What plain weights become where nothing else is said."""


def quantizer(ctx: QuantContext) -> Fp8Quantizer:
    """What the format's descriptor refers to. Raises `ConfigError` and `UnsupportedError` as
    `read_plan`."""
    return Fp8Quantizer(ctx)


class Fp8Quantizer:
    """Gives layers of codes a method that keeps them so, and rounds plain ones if that is asked.

    That is asked where the checkpoint has no quantisation of its own (the user named the format),
    and where weights are random.
    """

    def __init__(self, ctx: QuantContext) -> None:
        self._dtype: torch.dtype = getattr(torch, ctx.dtype)
        self._plan = read_plan(ctx.config)
        self._fast = ctx.dtype != "float32" and _multiplies_codes(ctx.platform)
        self._products: dict[Activations, Products] = {}

    def method(self, layer: LayerSpec) -> LinearMethod | None:
        """The method for `layer`, None to leave it plain.

        The stored type decides; the configuration says how codes are to be read. Raises
        `UnsupportedError` for a stack that is stored in several ways and for codes without a
        configuration, `CheckpointError` where configuration and tensors contradict each other.
        """
        weights = [_weight(part) for part in layer.sources]
        found = [weight for weight in weights if weight is not None]
        coded = [weight for weight in found if weight.stored_type not in PLAIN_TYPES]
        if not coded:
            return self._plain(layer, stored=bool(found))
        if len(coded) < len(found):
            raise UnsupportedError(
                f"{layer.prefix}: its parts are stored in several ways, which one layer cannot "
                f"have: {_listing(found)}"
            )
        schemes = {weight.name: self._scheme(layer, weight) for weight in coded}
        if len(set(schemes.values())) > 1:
            raise UnsupportedError(
                f"{layer.prefix}: its parts have several schemes, which one layer cannot have: "
                f"{_listing(found)}"
            )
        scheme = next(iter(schemes.values()))
        return StoredMethod(layer, scheme, self._dtype, self._products_for(scheme))

    def _plain(self, layer: LayerSpec, *, stored: bool) -> LinearMethod | None:
        """Plain weights are rounded in large linear layers only.

        Heads, embeddings and the small layers that every rank holds whole (routers, gates) are
        sensitive, and little would be won.
        """
        large = layer.kind == "linear" and layer.role in ("column", "row")
        if not large or (stored and self._plan is not None):
            return None
        scheme = _ONLINE
        if self._plan is not None:
            usual = self._plan.usual()
            activations: Activations = "none" if usual.activations == "none" else "dynamic"
            kind: WeightScales = "block" if usual.block is not None else "channel"
            scheme = Scheme(kind, activations, usual.block)
        return OnlineMethod(layer, scheme, self._dtype, self._products_for(scheme))

    def _scheme(self, layer: LayerSpec, weight: SourceTensor) -> Scheme:
        """How the codes of one stored weight are to be read."""
        where = f"{layer.prefix}: tensor {weight.name!r}"
        if weight.stored_type != STORED:
            raise UnsupportedError(
                f"{where} is stored as {weight.stored_type}; supported is {STORED}"
            )
        if self._plan is None:
            raise UnsupportedError(
                f"{where} is stored as {STORED}, but the checkpoint's configuration has no "
                "quantization_config that says what its scales mean"
            )
        module = weight.name.rpartition(".")[0]
        scheme = self._plan.scheme(module, layer.kind)
        if scheme is None:
            raise CheckpointError(
                f"{where} is stored as {STORED}, but quantization_config (quant_method="
                f"{self._plan.method!r}) leaves {module!r} out"
            )
        return scheme

    def _products_for(self, scheme: Scheme) -> Products:
        """One object for all layers with this kind of activations."""
        kind = scheme.activations
        if kind not in self._products:
            if self._fast:
                from pegboard_quant_fp8.device import DeviceProducts

                self._products[kind] = DeviceProducts(kind)
            else:
                self._products[kind] = TiledProducts()
        return self._products[kind]


def _multiplies_codes(platform: Mapping[str, Any]) -> bool:
    """Whether the device has units for 8-bit floats and kernels can be made for it."""
    if platform.get("platform") != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    capability = platform.get("capability")
    return isinstance(capability, (tuple, list)) and tuple(capability) >= _CAPABILITY


def _weight(part: tuple[SourceTensor, ...]) -> SourceTensor | None:
    """The weight among a part's tensors; scales and a bias stand beside it."""
    return next((source for source in part if suffix(source) == "weight"), None)


def _listing(weights: list[SourceTensor]) -> str:
    return ", ".join(f"{weight.name!r} ({weight.stored_type})" for weight in weights)
