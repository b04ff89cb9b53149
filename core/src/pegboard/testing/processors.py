"""Descriptors of logits processors for tests; import no torch."""

from __future__ import annotations

from pegboard.api.logits import LogitsProcessor

__all__ = ["SCRIPTED_PROCESSORS"]

SCRIPTED_PROCESSORS = (
    LogitsProcessor(
        name="scripted-gap",
        build="pegboard.testing.scripted_processors:GapRows",
        check="pegboard.testing.scripted_arguments:check_gap",
        arguments=("scripted_gap",),
    ),
    LogitsProcessor(
        name="scripted-parity",
        build="pegboard.testing.scripted_processors:ParityRows",
        check="pegboard.testing.scripted_arguments:check_parity",
        arguments=("scripted_parity",),
        needs_host_ids=True,
    ),
    LogitsProcessor(
        name="scripted-sharpness",
        build="pegboard.testing.scripted_processors:SharpRows",
        check="pegboard.testing.scripted_arguments:check_sharpness",
        arguments=("scripted_sharpness",),
        argmax_invariant=True,
    ),
)
"""``scripted-gap``: a token comes again only after so many others. ``scripted-parity``: ids are
even or odd as the sum of the output before them. ``scripted-sharpness``: logits times a number."""
