"""Descriptor of the null platform; imports no torch."""

from __future__ import annotations

from pegboard.api.platform import Platform

__all__ = ["NULL_PLATFORM"]

NULL_PLATFORM = Platform(
    name="null",
    probe="pegboard.testing.null_platform:probe",
    runtime="pegboard.testing.null_platform:NullRuntime",
    priority=-100,
)
"""See `pegboard.testing.null_platform`."""
