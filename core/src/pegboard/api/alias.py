"""Surface *alias*: another name for an architecture that a model family has.

Many checkpoints name an architecture of their own and are wired as a known one. An alias says
which, and may rewrite the configuration into what the family reads. Tensors must have the family's
names; whatever needs more is a model family.

Called by: the front end and each engine process, when a checkpoint is opened whose architecture no
family claims. An architecture that a family claims and an alias names is refused, with both named.
"""

from __future__ import annotations

from typing import Any

import attrs

from pegboard.api.descriptor import LazyRef, lazy_ref
from pegboard.errors import PluginError

__all__ = ["ModelAlias"]


@attrs.frozen
class ModelAlias:
    """Descriptor of an alias."""

    name: str = attrs.field()
    """The architecture, as the checkpoint names it, e.g. ``"MyLlamaForCausalLM"``."""
    of: str = attrs.field()
    """An architecture of a family, e.g. ``"MistralForCausalLM"``; or a family's name, which stands
    for the first of its architectures in checkpoints of this kind."""
    config: LazyRef | None = attrs.field(
        default=None, converter=attrs.converters.optional(lazy_ref)
    )
    """A callable ``(raw: Mapping[str, Any]) -> Mapping[str, Any]``: from the checkpoint's
    configuration to one as the family reads it. It must not change what it is given, nor import
    torch. None: nothing is rewritten."""
    kind: str = "hf"
    """Of checkpoint, see `pegboard.api.checkpoint.CheckpointSource.name`."""

    @name.validator
    @of.validator
    def _check(self, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, str) or not value:
            raise PluginError(f"a ModelAlias has {field.name}={value!r}; a name is wanted")

    def claims(self) -> tuple[str, ...]:
        return (f"{self.kind}:{self.name}",)
