"""Sampling parameters and log-probabilities: values that users write and read.

`SamplingParams` checks itself when it is made, so a bad value fails in the caller's line, with the
field's name and what is allowed. What depends on a model (ids inside the vocabulary, room in the
context) is checked when the request is added.
"""

from __future__ import annotations

import math
import numbers
import operator
import reprlib
from typing import Any

import msgspec

from pegboard.api.extra_args import plain_arguments
from pegboard.errors import RequestError

__all__ = [
    "BIAS_LIMIT",
    "MAX_COUNT",
    "MAX_LOGPROBS",
    "MAX_PENALTY",
    "MAX_SEQUENCES",
    "MAX_STOPS",
    "MAX_STOP_CHARACTERS",
    "MAX_TEMPERATURE",
    "MIN_PENALTY",
    "Logprob",
    "SamplingParams",
]

MAX_COUNT = 2**31 - 1
"""Largest count that a parameter may name; the engine keeps counts in machine integers."""
MAX_LOGPROBS = 20
"""Most alternatives per position that a request may ask for (-1 asks for the whole vocabulary,
offline only)."""
MAX_SEQUENCES = 16384
"""Most sequences of one request (`SamplingParams.n`)."""
MAX_STOPS = 256
"""Most stop strings of one request."""
MAX_STOP_CHARACTERS = 16384
"""Most characters of a request's stop strings together."""
MAX_TEMPERATURE = 10_000.0
MIN_PENALTY, MAX_PENALTY = 1e-4, 1e4
"""Range of `repetition_penalty`: inside it no product of a logit leaves the range of float32."""
BIAS_LIMIT = 100.0
"""Values of `logit_bias` are clamped to plus or minus this."""


class Logprob(msgspec.Struct, frozen=True):
    """Log-probability of one token at one position, natural logarithm, of the model's unmodified
    distribution."""

    logprob: float
    rank: int | None = None
    """1 for the likeliest token."""
    decoded_token: str | None = None


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """How the tokens of a request are chosen and when it ends.

    Logits pass, in this order: `allowed_token_ids`, `logit_bias`, `min_tokens` (end ids masked),
    repetition, frequency and presence penalties, logits processors (`extra_args`); then, unless
    greedy, `temperature`, `min_p`, `top_k`, `top_p`. A temperature of 0 is greedy. Numbers of other
    libraries (numpy's scalars) are taken and kept as Python's.
    """

    n: int = 1
    """Sequences to generate, at most `MAX_SEQUENCES`; they share the prompt's KV cache."""
    temperature: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities add up to at least this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the likeliest one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or output."""
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token seen in the output."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the output."""
    seed: int | None = None
    """Draws depend on seed, child index and position only. None: the engine draws one."""
    stop: str | list[str] | None = None
    """Texts that end the output, cut off unless `include_stop_str_in_output`. At most `MAX_STOPS`,
    of `MAX_STOP_CHARACTERS` characters together."""
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    """Do not end at the model's end ids."""
    min_tokens: int = 0
    """No stop of any kind before this many tokens; end ids cannot be sampled before."""
    max_tokens: int | None = 16
    """None: as many as the context has room for."""
    include_stop_str_in_output: bool = False
    logit_bias: dict[int, float] | None = None
    """Added to logits by token id; values are clamped to ±100."""
    allowed_token_ids: list[int] | None = None
    """No other token can be sampled."""
    logprobs: int | None = None
    """Likeliest alternatives to report per output token, beside the sampled one; -1 for all."""
    prompt_logprobs: int | None = None
    """The same for prompt tokens; the first has none."""
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    extra_args: dict[str, Any] | None = None
    """Arguments of logits processors, plain values by name; see `pegboard.api.logits`."""

    def __post_init__(self) -> None:
        _own_numbers(self)
        _check_types(self)
        _check_ranges(self)
        _check_stops(self)
        _check_id_lists(self)
        _own_lists(self)

    @classmethod
    def fields(cls) -> tuple[str, ...]:
        """Names of all parameters."""
        return cls.__struct_fields__

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is taken."""
        return self.temperature < 1e-5

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


def _fail(field: str, value: object, allowed: str) -> RequestError:
    shown = reprlib.repr(value) if isinstance(value, (list, tuple, dict, str)) else repr(value)
    return RequestError(f"{field}={shown} is not allowed: {allowed}", field=field)


_INTEGERS = ("n", "top_k", "min_tokens")
_OPTIONAL_INTEGERS = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_BOOLEANS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)


def _is_int(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Integral)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float can hold
        return False


def _own_numbers(params: SamplingParams) -> None:
    """Replace numbers of other libraries by Python's; what is no number stays, to be refused."""
    for field in (*_INTEGERS, *_OPTIONAL_INTEGERS):
        value = getattr(params, field)
        if type(value) is not int and _is_int(value):
            msgspec.structs.force_setattr(params, field, operator.index(value))
    for field in _NUMBERS:
        value = getattr(params, field)
        if type(value) not in (int, float) and _is_number(value):
            msgspec.structs.force_setattr(params, field, float(value))


def _own_lists(params: SamplingParams) -> None:
    """Keep copies, so that what was checked cannot be changed afterwards through the caller's."""
    if isinstance(params.stop, (list, tuple)):
        msgspec.structs.force_setattr(params, "stop", list(params.stop))
    for field in ("stop_token_ids", "allowed_token_ids"):
        ids = getattr(params, field)
        if ids is not None:
            msgspec.structs.force_setattr(params, field, list(map(operator.index, ids)))
    if params.logit_bias is not None:
        bias = {operator.index(token): float(v) for token, v in params.logit_bias.items()}
        msgspec.structs.force_setattr(params, "logit_bias", bias)
    if params.extra_args is not None:
        msgspec.structs.force_setattr(params, "extra_args", plain_arguments(params.extra_args))


def _check_types(params: SamplingParams) -> None:
    for field in ("n", "top_k", "min_tokens", "max_tokens"):
        value = getattr(params, field)
        if _is_int(value) and value > MAX_COUNT:
            raise _fail(field, value, f"at most {MAX_COUNT}")
    for field in _INTEGERS:
        if not _is_int(getattr(params, field)):
            raise _fail(field, getattr(params, field), "it must be an integer")
    for field in _OPTIONAL_INTEGERS:
        value = getattr(params, field)
        if value is not None and not _is_int(value):
            raise _fail(field, value, "it must be an integer or None")
    for field in _NUMBERS:
        if not _is_number(getattr(params, field)):
            raise _fail(field, getattr(params, field), "it must be a finite number")
    for field in _BOOLEANS:
        if not isinstance(getattr(params, field), bool):
            raise _fail(field, getattr(params, field), "it must be True or False")


def _check_ranges(params: SamplingParams) -> None:
    rules: tuple[tuple[str, bool, str], ...] = (
        ("n", 1 <= params.n <= MAX_SEQUENCES, f"at least 1 and at most {MAX_SEQUENCES}"),
        (
            "temperature",
            0 <= params.temperature <= MAX_TEMPERATURE,
            f"0 (greedy) or more, at most {MAX_TEMPERATURE:g}",
        ),
        ("top_k", params.top_k >= -1, "-1 or 0 (all), or a positive count"),
        ("top_p", 0 < params.top_p <= 1, "above 0 and at most 1"),
        ("min_p", 0 <= params.min_p <= 1, "from 0 to 1"),
        (
            "repetition_penalty",
            MIN_PENALTY <= params.repetition_penalty <= MAX_PENALTY,
            f"from {MIN_PENALTY:g} to {MAX_PENALTY:g}",
        ),
        ("presence_penalty", -2 <= params.presence_penalty <= 2, "from -2 to 2"),
        ("frequency_penalty", -2 <= params.frequency_penalty <= 2, "from -2 to 2"),
        ("seed", params.seed is None or -(2**63) <= params.seed < 2**63, "a 64-bit integer"),
        ("min_tokens", params.min_tokens >= 0, "0 or more"),
        ("max_tokens", params.max_tokens is None or params.max_tokens >= 0, "0 or more, or None"),
    )
    for field, good, allowed in rules:
        if not good:
            raise _fail(field, getattr(params, field), allowed)
    if params.greedy and params.n > 1:
        raise _fail("n", params.n, "1 when temperature is 0, since greedy sequences are all equal")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise _fail("min_tokens", params.min_tokens, f"at most max_tokens ({params.max_tokens})")
    if params.max_tokens == 0 and params.prompt_logprobs is None:
        raise _fail("max_tokens", 0, "at least 1, or 0 together with prompt_logprobs")
    if params.max_tokens == 0 and params.n > 1:
        raise _fail("n", params.n, "1 when max_tokens is 0")
    for field in ("logprobs", "prompt_logprobs"):
        value = getattr(params, field)
        if value is not None and not -1 <= value <= MAX_LOGPROBS:
            raise _fail(field, value, f"from 0 to {MAX_LOGPROBS}, or -1 for the whole vocabulary")


def _check_stops(params: SamplingParams) -> None:
    if params.stop is None:
        return
    if not isinstance(params.stop, (str, list, tuple)):
        raise _fail("stop", params.stop, "a string or a list of strings")
    stops = params.stop_strings
    if len(stops) > MAX_STOPS:
        raise RequestError(
            f"stop has {len(stops)} strings; at most {MAX_STOPS} are allowed", field="stop"
        )
    for text in stops:
        if not isinstance(text, str) or not text:
            raise _fail("stop", params.stop, "strings of at least one character")
    characters = sum(map(len, stops))
    if characters > MAX_STOP_CHARACTERS:
        raise RequestError(
            f"stop has {characters} characters in all; at most {MAX_STOP_CHARACTERS} are allowed",
            field="stop",
        )
    if params.stop_strings and not params.detokenize:
        raise _fail("stop", params.stop, "stop strings need detokenize=True")


def _check_id_lists(params: SamplingParams) -> None:
    for field in ("stop_token_ids", "allowed_token_ids"):
        ids: Any = getattr(params, field)
        if ids is None:
            continue
        if not isinstance(ids, (list, tuple)) or not all(_is_int(i) and i >= 0 for i in ids):
            raise _fail(field, ids, "a list of token ids (integers of 0 or more)")
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise _fail("allowed_token_ids", [], "at least one token id, or None")
    bias: Any = params.logit_bias
    if bias is None:
        return
    if not isinstance(bias, dict):
        raise _fail("logit_bias", bias, "a mapping from token id to number")
    for token, value in bias.items():
        if not _is_int(token) or token < 0 or not _is_number(value):
            raise _fail(
                "logit_bias", {token: value}, "token ids (integers of 0 or more) to finite numbers"
            )
