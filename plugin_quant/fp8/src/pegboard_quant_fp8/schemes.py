"""How a layer's numbers are to be read, and which layers of a checkpoint have them. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs

from pegboard.api.quant import LayerKind
from pegboard.errors import ConfigError

__all__ = ["Activations", "Plan", "Rule", "Scheme", "WeightScales", "compile_names"]

WeightScales = Literal["tensor", "channel", "block"]
Activations = Literal["dynamic", "static", "none"]

CLASS_NAMES: Mapping[LayerKind, str] = {
    "linear": "Linear",
    "head": "Linear",
    "embedding": "Embedding",
}
"""What the layers of a checkpoint were instances of, when a rule names a class."""


@attrs.frozen
class Scheme:
    """Scales of the weights, and how activations may be rounded.

    A weight is ``code * scale``; one scale stands for a whole stored matrix, for an output channel
    or for a block. Activations are rounded per token (``dynamic``; per token and 128 inputs beside
    block scales), by a stored scale (``static``) or not at all.
    """

    weights: WeightScales = "channel"
    activations: Activations = "dynamic"
    block: tuple[int, int] | None = None
    """Outputs and inputs of a block, of ``weights="block"`` only."""


@attrs.frozen
class Rule:
    """A scheme for the modules that `names` match, or that are of one of `classes`."""

    scheme: Scheme
    names: tuple[re.Pattern[str], ...] = ()
    classes: frozenset[str] = frozenset()


@attrs.frozen
class Plan:
    """What a checkpoint's ``quantization_config`` says."""

    method: str
    """Its ``quant_method``, for messages."""
    rules: tuple[Rule, ...]
    ignored: tuple[re.Pattern[str], ...] = ()
    ignored_classes: frozenset[str] = frozenset()

    def scheme(self, module: str, kind: LayerKind) -> Scheme | None:
        """Of the layer that the checkpoint calls `module`; None for one that is left as it was.

        A rule that names the layer goes before one that names its class.
        """
        name = CLASS_NAMES.get(kind, "")
        if name in self.ignored_classes or _matches(self.ignored, module):
            return None
        named = (rule.scheme for rule in self.rules if _matches(rule.names, module))
        of_class = (rule.scheme for rule in self.rules if name in rule.classes)
        return next(named, None) or next(of_class, None)

    def usual(self) -> Scheme:
        """The scheme of ordinary linear layers, for weights that are made and not read."""
        of_class = (rule.scheme for rule in self.rules if "Linear" in rule.classes)
        return next(of_class, self.rules[0].scheme)


def _matches(patterns: Iterable[re.Pattern[str]], module: str) -> bool:
    return any(pattern.match(module) for pattern in patterns)


def compile_names(key: str, value: Any, *, parts: bool) -> tuple[re.Pattern[str], ...]:
    """Patterns for a list of module names; ``re:`` before one makes it a regular expression, which
    is matched from the start of the name.

    `parts`: a name also means the modules inside it and, where it has no path of its own, those of
    this name anywhere. Raises `ConfigError` naming `key`.
    """
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"quantization_config: {key}={value!r} is not allowed: a list of names")
    return tuple(_pattern(key, item, parts) for item in value)


def _pattern(key: str, name: str, parts: bool) -> re.Pattern[str]:
    if not name.startswith("re:"):
        plain = re.escape(name)
        return re.compile(rf"(?:.*\.)?{plain}(?:\.|$)" if parts else rf"{plain}$")
    try:
        return re.compile(name[3:])
    except re.error as error:
        raise ConfigError(
            f"quantization_config: {key}: {name!r} is no regular expression: {error}"
        ) from error
