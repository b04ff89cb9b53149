"""What a model's authors recommend: sampling defaults and end ids of ``generation_config.json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import cattrs

from pegboard.api.params import SamplingParams
from pegboard.errors import CheckpointError, RequestError

__all__ = ["GenerationDefaults", "sampling_defaults", "token_ids", "united_ids"]


@attrs.frozen
class GenerationDefaults:
    """The keys of a generation configuration that mean something here, by the name they have
    there."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


_PARAMETER = {"max_new_tokens": "max_tokens"}
"""Names that `SamplingParams` has otherwise."""


def _integer(value: Any, _: type) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value


def _number(value: Any, _: type) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _converter() -> cattrs.Converter:
    """Strict where cattrs converts by default: a string is no number."""
    converter = cattrs.Converter()
    converter.register_structure_hook(int, _integer)
    converter.register_structure_hook(float, _number)
    return converter


def sampling_defaults(
    mapping: Mapping[str, Any], source: str = "generation_config.json"
) -> dict[str, Any]:
    """Defaults as keyword arguments of `SamplingParams`; unknown keys and nulls are left out.

    ``do_sample`` is among the unknown ones: files that give a temperature rarely set it.

    Raises `CheckpointError` naming `source` and the key if a known key has a value that is not
    allowed.
    """
    try:
        known = _converter().structure(dict(mapping), GenerationDefaults)
    except cattrs.BaseValidationError as error:
        raise CheckpointError(
            f"{source}: {'; '.join(cattrs.transform_error(error, path=source))}"
        ) from error
    values = {
        _PARAMETER.get(name, name): value
        for name, value in attrs.asdict(known).items()
        if value is not None
    }
    try:
        SamplingParams(**values)
    except RequestError as error:
        raise CheckpointError(f"{source}: {error}") from error
    return values


def token_ids(value: Any, where: str) -> tuple[int, ...]:
    """Ids from a key that may hold one, a list or null. Raises `CheckpointError` naming `where` for
    anything else."""
    listed = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    for item in listed:
        if isinstance(item, bool) or not isinstance(item, int):
            raise CheckpointError(
                f"{where}: {value!r} is neither a token id nor a list of token ids"
            )
    return tuple(listed)


def united_ids(vocab_size: int, *sources: Iterable[int]) -> tuple[int, ...]:
    """All ids of all sources, each once, ascending; ids that the model cannot produce are
    dropped."""
    return tuple(sorted({i for ids in sources for i in ids if 0 <= i < vocab_size}))
