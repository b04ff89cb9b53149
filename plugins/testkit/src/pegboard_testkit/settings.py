"""``plugin_config={"testkit": …}``."""

from __future__ import annotations

from typing import Any

import attrs

__all__ = ["Settings"]


@attrs.frozen(kw_only=True)
class Settings:
    """Settings of the toys."""

    null_step_ms: float = attrs.field(default=0.0)
    """Milliseconds that a step of the executor ``null`` takes."""

    @null_step_ms.validator
    def _check_step(self, field: attrs.Attribute[Any], value: float) -> None:
        if not 0 <= value < 1e6:
            raise ValueError(f"{field.name}={value!r} is not allowed: 0 to a million")
