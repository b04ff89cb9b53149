"""What descriptors refer to, and whose code that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs

from pegboard.api.descriptor import LazyRef
from pegboard.plugins.record import PluginRecord
from pegboard.plugins.registry import Registry

__all__ = ["code_owners", "lazy_refs"]

_CORE = __name__.partition(".")[0]


def lazy_refs(value: Any) -> Iterator[str]:
    """Every lazy reference inside a descriptor, as ``"module:attribute"``."""
    if isinstance(value, LazyRef):
        yield value.target
    elif isinstance(value, Mapping):
        yield from (target for item in value.values() for target in lazy_refs(item))
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (target for item in value for target in lazy_refs(item))
    elif attrs.has(type(value)):
        yield from (t for f in attrs.fields(type(value)) for t in lazy_refs(getattr(value, f.name)))


def code_owners(
    records: Iterable[PluginRecord], registries: Iterable[Registry[Any]]
) -> dict[str, str]:
    """By module at the top, which of these plugins its code belongs to, as far as entry points and
    lazy references tell."""
    ready = {(r.group, r.id, r.distribution): r for r in records}
    owners = {_root(r.module): f"plugin {r}" for r in ready.values()}
    for entry in (entry for registry in registries for entry in registry.entries()):
        source = entry.provenance
        record = ready.get((source.group, source.entry_point, source.distribution))
        for target in lazy_refs(entry.descriptor) if record is not None else ():
            owners.setdefault(_root(target), f"plugin {record}")
    owners.pop(_CORE, None)
    return owners


def _root(target: str) -> str:
    """First module of a reference, with or without an attribute."""
    return target.partition(":")[0].partition(".")[0]
