"""The version of `pegboard-core`, and through `make sync` of every first-party distribution."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
