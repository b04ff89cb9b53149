"""Reading ``quantization_config`` in its two forms. No torch.

Both forms end in a `Plan`. Whatever is not 8-bit floating point, or would change the computation in
a way that is not served, is refused by its key and value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from pegboard.errors import ConfigError, UnsupportedError
from pegboard.nn import ConfigReader
from pegboard_quant_fp8.schemes import Activations, Plan, Rule, Scheme, compile_names

__all__ = ["read_plan"]

SOURCE = "quantization_config"
_FORMATS = ("float-quantized", "naive-quantized")
_REFUSED: Mapping[str, Collection[Any]] = {
    "kv_cache_quant_algo": (),
    "sparsity_config": ({},),
    "transform_config": ({},),
}
"""Keys that would change the computation, with the values that change nothing."""
_HARMLESS = frozenset(
    {"fmt", "global_compression_ratio", "quant_method", "scale_fmt", "use_deep_gemm", "version"}
)


def read_plan(raw: Mapping[str, Any]) -> Plan | None:
    """The plan of a checkpoint; None if its configuration says nothing.

    Raises `ConfigError` for a malformed key, `UnsupportedError` for a number format, a granularity
    or a further transformation that is not served.
    """
    if not raw:
        return None
    if raw.get("quant_method") == "compressed-tensors":
        return _compressed_tensors(raw)
    return _fp8(raw)


def _fp8(raw: Mapping[str, Any]) -> Plan:
    """``quant_method: fp8``: one scheme for all linear layers but those in a list."""
    read = ConfigReader(raw, SOURCE)
    read.refuse_unless(
        {**_REFUSED, "fmt": ("e4m3",), "dequantize": (False,), "kv_cache_scheme": ("static",)}
    )
    activations = read.text("activation_scheme", "dynamic", allowed=("dynamic", "static"))
    block = _block(read.get("weight_block_size"), "weight_block_size")
    if block is not None and activations == "static":
        raise UnsupportedError(
            f"{SOURCE}: activation_scheme='static' beside weight_block_size is not supported"
        )
    known: Activations = "static" if activations == "static" else "dynamic"
    scheme = Scheme("tensor" if block is None else "block", known, block)
    ignored: list[re.Pattern[str]] = []
    for key in ("modules_to_not_convert", "ignored_layers"):
        ignored += compile_names(key, read.get(key, []), parts=True)
    read.finish(_HARMLESS)
    rule = Rule(scheme, classes=frozenset({"Linear", "Embedding"}))
    return Plan("fp8", (rule,), tuple(ignored))


def _compressed_tensors(raw: Mapping[str, Any]) -> Plan:
    """``quant_method: compressed-tensors``: groups of targets, each with a scheme."""
    read = ConfigReader(raw, SOURCE)
    read.refuse_unless(_REFUSED)
    _check_cache(read.get("kv_cache_scheme"))
    _known(read, "format", _FORMATS)
    _known(read, "quantization_status", ("compressed", "frozen"))
    groups = read.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise read.bad("config_groups", groups, "an object with at least one group")
    ignore = read.get("ignore", [])
    names = compile_names("ignore", ignore, parts=False)
    read.finish(_HARMLESS)
    rules = tuple(_group(f"config_groups.{name}", group) for name, group in groups.items())
    return Plan("compressed-tensors", rules, names, frozenset(ignore))


def _known(read: ConfigReader, key: str, allowed: tuple[str, ...]) -> None:
    """Refuse a value that stands for another number format or an unfinished file."""
    value = read.get(key, allowed[0])
    if value not in allowed:
        raise UnsupportedError(
            f"{SOURCE}: {key}={value!r} is not supported; supported are {', '.join(allowed)}"
        )


def _check_cache(scheme: Any) -> None:
    """Refuse scales of keys and values that are no number per layer. The tensors are the model's
    to read; whether the cache is of 8-bit floats is for the engine's settings to say."""
    if scheme is None:
        return
    where = "kv_cache_scheme"
    if _Numbers(where, scheme).activations() != "static":
        raise UnsupportedError(
            f"{SOURCE}: {where} has dynamic scales; served is strategy 'tensor', not dynamic"
        )


def _group(where: str, group: Any) -> Rule:
    if not isinstance(group, Mapping):
        raise ConfigError(f"{SOURCE}: {where}={group!r} is not allowed: an object")
    read = ConfigReader(group, f"{SOURCE}: {where}")
    read.refuse_unless({"output_activations": ()})
    _known(read, "format", _FORMATS)
    targets = read.get("targets", [])
    names = compile_names(f"{where}.targets", targets, parts=False)
    if not targets:
        raise read.bad("targets", targets, "a list with at least one name")
    weights = _Numbers(f"{where}.weights", group.get("weights"))
    given = group.get("input_activations")
    activations: Activations = "none"
    if given is not None:
        activations = _Numbers(f"{where}.input_activations", given).activations()
    scheme = weights.weights(activations)
    return Rule(scheme, names, frozenset(targets))


class _Numbers:
    """The description of one kind of numbers in a group."""

    def __init__(self, where: str, raw: Any) -> None:
        if not isinstance(raw, Mapping):
            raise ConfigError(f"{SOURCE}: {where}={raw!r} is not allowed: an object")
        self._read = read = ConfigReader(raw, f"{SOURCE}: {where}")
        bits, kind = read.get("num_bits"), read.get("type")
        if (bits, kind) != (8, "float"):
            raise UnsupportedError(
                f"{SOURCE}: {where} has num_bits={bits!r}, type={kind!r}; "
                "served are 8 bits of type 'float'"
            )
        read.refuse_unless({"symmetric": (True,), "actorder": (False,)})
        self._strategy = read.get("strategy")
        self._dynamic = read.get("dynamic", False)

    def _refuse(self, served: str) -> UnsupportedError:
        found = self._read.bad("strategy", self._strategy, served)
        return UnsupportedError(f"{found}; dynamic={self._dynamic!r}")

    def weights(self, activations: Activations) -> Scheme:
        """The scheme of weights with these numbers."""
        strategy = self._strategy
        if strategy not in ("tensor", "channel", "block") or self._dynamic is not False:
            raise self._refuse("'tensor', 'channel' or 'block', not dynamic")
        if strategy != "block":
            return Scheme(strategy, activations)
        block = _block(self._read.get("block_structure"), "block_structure")
        if block is None:
            raise self._read.bad("block_structure", None, "two sizes")
        if activations == "static":
            raise self._refuse("'tensor' or 'channel' beside static activations")
        return Scheme("block", activations, block)

    def activations(self) -> Activations:
        """Whether activations get their scale in the step or bring a stored one.

        Scales per token are at least as fine as the ones per tensor that a file may ask for.
        """
        if self._dynamic is True and self._strategy in ("token", "tensor", "group"):
            return "dynamic"
        if self._dynamic is False and self._strategy == "tensor":
            return "static"
        raise self._refuse("dynamic 'token', 'tensor' or 'group', or static 'tensor'")


def _block(value: Any, key: str) -> tuple[int, int] | None:
    """Two sizes, as a list or as text like ``128x128``."""
    if value is None:
        return None
    found = value.split("x") if isinstance(value, str) else value
    good = isinstance(found, (list, tuple)) and len(found) == 2
    sizes = [_size(item) for item in found] if good else []
    if not good or not all(sizes):
        raise ConfigError(
            f"{SOURCE}: {key}={value!r} is not allowed: two sizes of at least 1, outputs and inputs"
        )
    return sizes[0], sizes[1]


def _size(item: Any) -> int:
    """A size of at least 1, or 0 for anything else."""
    if isinstance(item, str) and item.isdigit():
        return int(item)
    return item if isinstance(item, int) and not isinstance(item, bool) and item > 0 else 0
