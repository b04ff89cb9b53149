"""A model, built by its family and filled from its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from pegboard.api.model import BuildContext, LanguageModel, Parallel, WeightMap
from pegboard.api.quant import SourceTensor
from pegboard.config.engine import EngineConfig
from pegboard.config.model import ResolvedModel
from pegboard.errors import PluginError
from pegboard.logging import get_logger
from pegboard.nn import plain_method
from pegboard.weights.checksum import WeightSums
from pegboard.weights.loader import Progress, fill_dummy, load_weights
from pegboard.weights.methods import method_chooser
from pegboard.weights.resolve import ResolvedWeights

if TYPE_CHECKING:
    from pegboard.plugins import Board

__all__ = ["load_model"]


@torch.no_grad()
def load_model(
    board: Board,
    config: EngineConfig,
    model: ResolvedModel,
    *,
    device: torch.device,
    dtype: torch.dtype,
    ops: Any,
    platform_facts: Mapping[str, Any],
    progress: Progress | None = None,
    parallel: Parallel | None = None,
    sums: WeightSums | None = None,
    formats: set[str] | None = None,
) -> LanguageModel:
    """Build `model` on `device` and load its weights (random ones with ``load_format="dummy"``).

    Args:
        board: Where quantisations are found.
        config: The engine's settings.
        model: What `pegboard.config.model.resolve_model` made of them.
        device: Where runtime parameters go.
        dtype: Compute dtype.
        ops: The op table that the family's blocks call.
        platform_facts: ``DeviceRuntime.facts()``, for quantisations.
        progress: Called with ``(bytes done, bytes in all)`` after each layer.
        parallel: This worker's place among tensor-parallel ranks; None for a single one.
        sums: Gets the stored tensors that are read; it costs time, so only where it is needed.
        formats: Gets the names of the quantisations that own layers.

    Returns the module in evaluation mode. Raises `CheckpointError` if weights and configuration do
    not agree, `MissingPluginError` for a quantisation that is not there, `UnsupportedError` for one
    that cannot serve a layer.
    """
    parallel = parallel or Parallel()
    resolved = _resolve(model, sums)
    method = _chooser(board, config, model, dtype, ops, platform_facts)
    dummy = config.load_format == "dummy"
    context = BuildContext(
        config=model.family_config,
        dtype=dtype,
        device=device,
        ops=ops,
        method=method,
        sources=_no_sources if dummy else resolved.sources,
        parallel=parallel,
        max_positions=model.max_model_len,
        **board.handed("model", model.family.name),
    )
    built = _build(model, context)
    if formats is not None:
        formats.update(method.formats)
    if dummy:
        fill_dummy(built, device, parallel=parallel)
    else:
        _load(built, model, resolved, device, progress, parallel)
    return cast("LanguageModel", built.eval().requires_grad_(False))


def _chooser(
    board: Board,
    config: EngineConfig,
    model: ResolvedModel,
    dtype: torch.dtype,
    ops: Any,
    platform_facts: Mapping[str, Any],
) -> Any:
    return method_chooser(
        board,
        model.checkpoint,
        dtype=str(dtype).removeprefix("torch."),
        platform_facts=platform_facts,
        quantization=config.quantization,
        plain=lambda layer: plain_method(layer, dtype, ops),
    )


def _load(
    built: torch.nn.Module,
    model: ResolvedModel,
    resolved: ResolvedWeights,
    device: torch.device,
    progress: Progress | None,
    parallel: Parallel,
) -> None:
    skipped = load_weights(built, resolved, device, progress, parallel=parallel)
    _report_skipped(model.path, skipped)


def _build(model: ResolvedModel, context: BuildContext) -> torch.nn.Module:
    built: Any = model.family.build.load()(context)
    if not isinstance(built, torch.nn.Module):
        raise PluginError(
            f"family {model.family.name!r} built {type(built).__name__}, not a torch module"
        )
    return built


def _resolve(model: ResolvedModel, sums: WeightSums | None) -> ResolvedWeights:
    weight_map: WeightMap = model.family.weights.load()(model.family_config, model.checkpoint.kind)
    return ResolvedWeights(weight_map, model.checkpoint, model.facts.layers, sums)


def _no_sources(prefix: str, parts: int) -> tuple[tuple[SourceTensor, ...], ...]:
    """Random weights have no stored types: every layer is plain."""
    return ((),) * parts


def _report_skipped(path: str, skipped: Mapping[str, str]) -> None:
    """Say once per reason what was left out."""
    log = get_logger("pegboard.weights")
    by_reason: dict[str, list[str]] = {}
    for name, reason in skipped.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        log.info("tensors not loaded", path=path, reason=reason, count=len(names), first=names[0])
