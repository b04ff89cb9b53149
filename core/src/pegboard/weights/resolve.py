"""From a family's weight map to the tensors of one checkpoint, and the account of both sides.

The map is data (`pegboard.api.model.WeightMap`); here its ``{i}`` rules are expanded (``{e}`` stays
until an expert is asked for), stored
tensors are found for the parts of layers, and every stored tensor that nothing took is either
skipped for a stated reason or named as a fault.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import attrs

from pegboard.api.checkpoint import Checkpoint, StoredTensor
from pegboard.api.model import RowOrder, WeightMap, WeightRule
from pegboard.api.quant import SourceTensor
from pegboard.errors import CheckpointError, PluginError

if TYPE_CHECKING:
    from pegboard.weights.checksum import WeightSums

__all__ = ["Found", "ResolvedWeights"]


@attrs.frozen
class Found:
    """A stored tensor, how its rows are to be ordered, and what is added to its elements."""

    tensor: StoredTensor
    row_order: RowOrder | None = None
    offset: float = 0.0


@attrs.frozen
class _Origin:
    """Where one rule takes a part from: tensors ``<module>.<suffix>``."""

    module: str
    row_order: RowOrder | None
    offset: float
    experts: int
    """``{e}`` in `module` counts so many; 0 if it has none."""

    def modules(self) -> Iterator[str]:
        """The name of the one module, or those of all experts."""
        if not self.experts:
            yield self.module
        for expert in range(self.experts):
            yield self.of(expert)

    def of(self, expert: int) -> str:
        """The name of one expert's module."""
        return self.module.replace("{e}", str(expert))


class ResolvedWeights:
    """A weight map applied to the tensors of one checkpoint.

    Several rules may name the same part (spellings of different times) as long as the file has only
    one of them; one stored tensor may fill several parts.
    """

    def __init__(
        self,
        weight_map: WeightMap,
        checkpoint: Checkpoint,
        layers: int,
        sums: WeightSums | None = None,
    ) -> None:
        """`layers`: how many layers the configuration has. What is read is summed by `sums`.
        Raises `PluginError` for a rule that contradicts itself."""
        stored = checkpoint.tensors if sums is None else sums.watch(checkpoint.tensors)
        self.path = checkpoint.path
        self.layers = layers
        self._map = weight_map
        self._tensors = stored
        self._origins = _expand(weight_map.rules, layers)
        self._by_module = _by_module(stored)

    def sources(self, prefix: str, parts: int) -> tuple[tuple[SourceTensor, ...], ...]:
        """Every stored tensor of each part of module `prefix`; a part of which nothing is stored
        has none."""
        return tuple(
            tuple(
                SourceTensor(tensor.name, tensor.stored_type, tuple(tensor.shape))
                for origin in self._origins.get((prefix, part), ())
                for module in origin.modules()
                for _, tensor in sorted(self._by_module.get(module, {}).items())
            )
            for part in range(parts)
        )

    def experts(self, prefix: str, part: int) -> int:
        """How many experts have tensors of their own for a part, by the weight map; 0: none do."""
        origins = self._origins.get((prefix, part), ())
        return max((origin.experts for origin in origins), default=0)

    def find(self, prefix: str, part: int, name: str, expert: int | None = None) -> Found | None:
        """The stored tensor for parameter `name` of a part, or of one expert of it, or None if the
        checkpoint has none.

        Raises `CheckpointError` if it has two.
        """
        found = [
            Found(tensors[name], origin.row_order, origin.offset)
            for origin, module in self._modules(prefix, part, expert)
            if name in (tensors := self._by_module.get(module, {}))
        ]
        if len(found) > 1:
            names = " and ".join(repr(f.tensor.name) for f in found)
            raise CheckpointError(f"{self.path}: {names} are both stored for {prefix}, part {part}")
        return found[0] if found else None

    def expected_names(
        self, prefix: str, part: int, name: str, expert: int | None = None
    ) -> tuple[str, ...]:
        """Names under which the checkpoint could have stored a parameter, for error messages."""
        return tuple(f"{module}.{name}" for _, module in self._modules(prefix, part, expert))

    def _modules(self, prefix: str, part: int, expert: int | None) -> Iterator[tuple[_Origin, str]]:
        """Origins of a whole part, or of one expert of it, with the name of the module."""
        for origin in self._origins.get((prefix, part), ()):
            if expert is None and not origin.experts:
                yield origin, origin.module
            elif expert is not None and expert < origin.experts:
                yield origin, origin.of(expert)

    def skipped(self, used: Collection[str]) -> dict[str, str]:
        """Tensors that are left out on purpose: reason by name."""
        reasons = ((name, self._skip_reason(name)) for name in self._tensors if name not in used)
        return {name: reason for name, reason in reasons if reason is not None}

    def unexpected(self, used: Collection[str]) -> tuple[str, ...]:
        """One phrase for each tensor that is neither used nor skipped."""
        left = (name for name in self._tensors if name not in used)
        return tuple(self._why_unused(name) for name in left if self._skip_reason(name) is None)

    def _skip_reason(self, name: str) -> str | None:
        matching = (skip.reason for skip in self._map.skips if fnmatchcase(name, skip.pattern))
        return next(matching, None)

    def _why_unused(self, name: str) -> str:
        where = f"{name!r} (in {self._tensors[name].file})"
        module = name.rpartition(".")[0]
        for rule in self._map.rules:
            match = re.fullmatch(_pattern(rule.source), module)
            if match is None:
                continue
            numbers = match.groupdict()
            for noun, count in (("layer", self.layers), ("expert", rule.experts)):
                if int(numbers.get(noun, -1)) >= count:
                    return (
                        f"{where} is of {noun} {numbers[noun]}, but the configuration has "
                        f"{count} {noun}s"
                    )
            return f"{where} has no place in this configuration of the model"
        return f"{where} is unknown to the model"


def _pattern(source: str) -> str:
    """A regular expression for the names that a rule's source stands for."""
    pattern = re.escape(source)
    for place, noun in (("{i}", "layer"), ("{e}", "expert")):
        pattern = pattern.replace(re.escape(place), rf"(?P<{noun}>\d{{1,9}})", 1)
    return pattern


def _expand(
    rules: Iterable[WeightRule], layers: int
) -> Mapping[tuple[str, int], tuple[_Origin, ...]]:
    """Origins by (target, part), one entry per layer for rules with ``{i}``."""
    origins: dict[tuple[str, int], list[_Origin]] = defaultdict(list)
    for rule in rules:
        counts = {rule.source.count("{i}"), rule.target.count("{i}")}
        if counts not in ({0}, {1}):
            raise PluginError(
                f"weight rule {rule.source!r} -> {rule.target!r}: '{{i}}' must be in both names, "
                f"once, or in neither"
            )
        if (rule.source.count("{e}"), rule.target.count("{e}")) != (int(rule.experts > 0), 0):
            raise PluginError(
                f"weight rule {rule.source!r} -> {rule.target!r}: '{{e}}' must be in the source, "
                f"once, where the rule is for experts, and nowhere else"
            )
        for i in range(layers) if counts == {1} else (0,):
            source, target = (name.replace("{i}", str(i)) for name in (rule.source, rule.target))
            origin = _Origin(source, rule.row_order, rule.offset, rule.experts)
            origins[target, rule.part].append(origin)
    return {key: tuple(dict.fromkeys(found)) for key, found in origins.items()}


def _by_module(tensors: Mapping[str, StoredTensor]) -> Mapping[str, Mapping[str, StoredTensor]]:
    """Tensors by the part of the name before the last dot, then by the rest."""
    modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        module, _, suffix = name.rpartition(".")
        modules[module][suffix] = tensor
    return dict(modules)
