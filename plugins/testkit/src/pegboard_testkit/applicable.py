"""Which tests of a kit a plugin gets."""

from __future__ import annotations

__all__ = ["leave_out"]


def leave_out(kit: type, where: bool, *tests: str) -> None:
    """Have pytest not collect `tests` of the class `kit` `where` that holds.

    A skip would say of every such plugin that something is missing.
    """
    for name in tests:
        if where:
            setattr(kit, name, None)
        elif getattr(kit, name) is None:  # of a class in between, to which it did not apply
            setattr(kit, name, next(own[name] for own in map(vars, kit.__mro__) if own.get(name)))
