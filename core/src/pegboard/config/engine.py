"""The engine's settings, with the names that users know.

`EngineConfig` is frozen and checks each field when it is made. What depends on a model (its
context, its dtype) is decided later and lives in `ResolvedModel`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs

from pegboard.api.transfer_config import KVTransferConfig
from pegboard.config.aliases import ALIASES, canonical
from pegboard.config.kv_events import KVEventsConfig, parse_kv_events
from pegboard.config.plugin_config import parse_plugin_config
from pegboard.errors import ConfigError

__all__ = ["EngineConfig", "unknown_option"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
FP8 = "float8_e4m3fn"
CACHE_DTYPES = (*DTYPES, FP8)
_DTYPE_ALIASES = {"float": "float32", "half": "float16"}
_CACHE_ALIASES = {"fp8": FP8, "fp8_e4m3": FP8}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LOAD_FORMATS = ("auto", "dummy")
OP_VERSIONS = ("auto", "plain")
STATE_MODES = ("auto", "none", "align", "all")
POLICIES = ("fcfs", "priority", "lpm")
MOST_SEQS = 1 << 16
MOST_BATCHED_TOKENS = 1 << 24
"""Tables of these lengths are allocated at the start; beyond these bounds a number is a slip."""
MOST_RANKS = 64
"""Of tensor parallelism: more devices than a host has."""

_UNCHUNKED = "while enable_chunked_prefill is False, since prompts then run whole"

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _reject(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{field}={value!r} is not allowed: {allowed}")


def _is(value: object, choice: object) -> bool:
    return isinstance(value, type(choice)) and not isinstance(value, bool) and value == choice


def _one_of(allowed: Collection[object]) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        # By type too: True == 1 and 16.0 == 16, but neither is what the field wants.
        if not any(_is(value, choice) for choice in allowed):
            raise _reject(field.name, value, "one of " + ", ".join(map(str, allowed)))

    return check


def _integer(least: int, optional: bool = False, most: int | None = None) -> Validator:
    span = f"an integer of at least {least}" if most is None else f"an integer, {least} to {most}"
    span += " or None" if optional else ""

    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise _reject(field.name, value, span)
        if most is not None and value > most:
            raise _reject(field.name, value, span)

    return check


def _fraction(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1
    if not good:
        raise _reject(field.name, value, "above 0 and at most 1")


def _text(optional: bool = False) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if value is None and optional:
            return
        if not isinstance(value, str) or not value:
            raise _reject(field.name, value, "a string of at least one character")

    return check


def _list_text(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise _reject(field.name, value, "a comma-separated list in one string, or None")


def _boolean(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise _reject(field.name, value, "True or False")


def _boolean_or_none(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None and not isinstance(value, bool):
        raise _reject(field.name, value, "True, False or None")


def _dtype_name(value: Any) -> Any:
    """Accept ``torch.float32`` and the usual aliases where a dtype is wanted."""
    name = str(value).removeprefix("torch.") if not isinstance(value, str) else value
    return _DTYPE_ALIASES.get(name, name)


def _cache_dtype_name(value: Any) -> Any:
    """The same where 8-bit floats are allowed too, by the names that users know."""
    name = _dtype_name(value)
    return _CACHE_ALIASES.get(name, name)


def _path_text(value: Any) -> Any:
    """The text of a path object; anything else stays, to be judged by the validator."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _names(given: Any) -> Any:
    """A list of names, or names with commas between them, as a tuple."""
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(","))
    return tuple(given) if isinstance(given, (list, tuple)) else given


def _distinct_names(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    good = isinstance(value, tuple) and all(isinstance(name, str) and name for name in value)
    if not good or len(set(value)) < len(value):  # type: ignore[call-overload,arg-type]
        raise _reject(field.name, value, "a list of distinct names")


def _distinct_names_or_none(owner: Any, field: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        _distinct_names(owner, field, value)


def _transfer_config(given: Any) -> KVTransferConfig | None:
    """Accept a mapping or JSON text where a connector's settings are wanted."""
    return None if given is None else KVTransferConfig.make(given)


@attrs.frozen(kw_only=True)
class EngineConfig:
    """Settings of one engine."""

    model: str = attrs.field(converter=_path_text, validator=_text())
    """Path of a checkpoint (a string or a path object), or a hub id."""
    tokenizer: str | None = attrs.field(
        default=None, converter=_path_text, validator=_text(optional=True)
    )
    """Path or hub id of another checkpoint's tokeniser. None: the model's."""
    tokenizer_mode: str = attrs.field(default="auto", validator=_text())
    """Kind of tokeniser, by its registered name. ``auto``: what the checkpoint says."""
    skip_tokenizer_init: bool = attrs.field(default=False, validator=_boolean)
    """Load no tokeniser: prompts are token ids, outputs have ids and no text; stop strings and chat
    are refused. End ids are then those of the configuration files alone."""
    revision: str | None = attrs.field(default=None, validator=_text(optional=True))
    dtype: str = attrs.field(default="auto", converter=_dtype_name, validator=_one_of(DTYPES))
    """Compute dtype. ``auto``: the checkpoint's, as far as the device supports it."""
    kv_cache_dtype: str = attrs.field(
        default="auto", converter=_cache_dtype_name, validator=_one_of(CACHE_DTYPES)
    )
    """Dtype of keys and values in the cache. ``auto``: as `dtype`. ``fp8``, also spelt ``fp8_e4m3``
    or ``float8_e4m3fn``: 8-bit floats, with the scales that a checkpoint has for them, else 1."""
    quantization: str | None = attrs.field(default=None, validator=_text(optional=True))
    load_format: str = attrs.field(default="auto", validator=_one_of(LOAD_FORMATS))
    max_model_len: int | None = attrs.field(default=None, validator=_integer(1, optional=True))
    """Longest prompt plus output, in tokens. None: what the model was made for."""
    block_size: int = attrs.field(default=16, validator=_one_of(BLOCK_SIZES))
    """Tokens per KV block."""
    max_num_seqs: int = attrs.field(default=128, validator=_integer(1, most=MOST_SEQS))
    """Most requests in a step, up to `MOST_SEQS`."""
    max_num_batched_tokens: int = attrs.field(
        default=2048, validator=_integer(1, most=MOST_BATCHED_TOKENS)
    )
    """Token budget of a step, up to `MOST_BATCHED_TOKENS`."""
    enable_chunked_prefill: bool = attrs.field(default=True, validator=_boolean)
    scheduling_policy: str = attrs.field(default="fcfs", validator=_one_of(POLICIES))
    """Who is admitted first. ``fcfs``: in order of arrival. ``priority``: the lowest priority value
    first. ``lpm``: the longest cached beginning first."""
    scheduler_cls: str | None = attrs.field(default=None, validator=_text(optional=True))
    """A registered scheduler, or ``"module:attribute"``. None: the core's own."""
    max_num_partial_prefills: int = attrs.field(default=1, validator=_integer(1))
    """Prompts that may be unfinished at once and share a step's budget. 1: one after the other."""
    max_long_partial_prefills: int = attrs.field(default=1, validator=_integer(1))
    """Of these, how many may be long."""
    long_prefill_token_threshold: int = attrs.field(default=0, validator=_integer(0))
    """A prompt with more tokens left is long, and advances by so many per step. 0: no such limit,
    and long is what exceeds 4 % of the context."""
    scheduler_reserve_full_isl: bool = attrs.field(default=True, validator=_boolean)
    """Admit a request only if its whole input fits, not only its first chunk."""
    stream_interval: int = attrs.field(default=1, validator=_integer(1))
    """Tokens between two outputs of a running request; the first and the last come at once."""
    num_gpu_blocks_override: int | None = attrs.field(
        default=None, validator=_integer(2, optional=True)
    )
    """KV blocks, the null block included, whatever the memory says."""
    kv_cache_memory_bytes: int | None = attrs.field(
        default=None, validator=_integer(1, optional=True)
    )
    """Bytes for the KV cache, whatever the profile says."""
    gpu_memory_utilization: float = attrs.field(default=0.9, validator=_fraction)
    """Share of the device's memory that weights, activations and cache may take together."""
    enable_prefix_caching: bool = attrs.field(default=True, validator=_boolean)
    mamba_cache_mode: str = attrs.field(default="auto", validator=_one_of(STATE_MODES))
    """Which recurrent states are kept for prefix hits, see `pegboard.api.kv.RecurrentSpec`.
    ``auto``: what the model's family says; without prefix caching always none."""
    kv_events_config: KVEventsConfig | None = attrs.field(default=None, converter=parse_kv_events)
    """Who is told what the prefix cache holds: a mapping, or its JSON."""
    watermark: float = attrs.field(default=0.01)
    """Share of the blocks kept free when a waiting request is admitted."""
    async_scheduling: bool | None = attrs.field(default=None, validator=_boolean_or_none)
    """Plan a step while the one before it runs. None: where the executor can."""
    tensor_parallel_size: int = attrs.field(default=1, validator=_integer(1, most=MOST_RANKS))
    """Ranks that share every layer out among them, each with a device of this host and a process
    of its own."""
    enforce_eager: bool = attrs.field(default=False, validator=_boolean)
    """Record no steps, where the device can: each operation is submitted by itself."""
    seed: int = attrs.field(default=0, validator=_integer(0))
    """Seeds the draws of requests that bring no seed of their own."""
    platform: str | None = attrs.field(default=None, validator=_text(optional=True))
    attention_backend: str | None = attrs.field(default=None, validator=_text(optional=True))
    op_versions: str = attrs.field(default="auto", validator=_one_of(OP_VERSIONS))
    """Which versions of the ops of `pegboard.nn.ops` run. ``auto``: of each the fastest that fits.
    ``plain``: the core's own everywhere, which are the oracle of the others."""
    chat_template: str | None = attrs.field(
        default=None, converter=_path_text, validator=_text(optional=True)
    )
    """Path or source of a template that replaces the model's, or the name of one of the model's."""
    kv_transfer_config: KVTransferConfig | None = attrs.field(
        default=None, converter=_transfer_config
    )
    """The KV connector: a mapping or its JSON text. None: no connector."""
    strict_plugins: bool = attrs.field(default=False, validator=_boolean)
    """A plugin that fails to load, or an allowlist entry without a match, is fatal."""
    no_plugins_except: str | None = attrs.field(default=None, validator=_list_text)
    """A second allowlist, of the same grammar as the variable's, which must admit a plugin too.
    None: there is none; empty: no plugin loads."""
    plugins_lock: str | None = attrs.field(
        default=None, converter=_path_text, validator=_text(optional=True)
    )
    """Path of a file made by ``pegboard plugins lock``: the engine starts only if the installed
    plugins are those."""
    plugin_config: Mapping[str, Mapping[str, Any]] = attrs.field(
        default={}, converter=parse_plugin_config
    )
    """Settings of plugins: ``{id: {key: value}}``, or its JSON."""
    unsafe_plugins: bool = attrs.field(default=False, validator=_boolean)
    """Let plugins replace parts of the core. What they replace is reported."""
    distributed_executor_backend: str | None = attrs.field(
        default=None, validator=_text(optional=True)
    )
    """A registered executor. None: the core's own, of as many ranks as there are."""
    stat_loggers: tuple[str, ...] | None = attrs.field(
        default=None, converter=_names, validator=_distinct_names_or_none
    )
    """Registered loggers that are told what the engine does and what becomes of requests. None:
    those that are on by default, where an engine serves (`pegboard.AsyncLLM`), else nobody."""
    tracer: str | None = attrs.field(default=None, validator=_text(optional=True))
    """A registered tracer, told of each request that ended. None: the only one there is, if
    `otlp_traces_endpoint` is given, else nobody."""
    otlp_traces_endpoint: str | None = attrs.field(default=None, validator=_text(optional=True))
    """Where the tracer sends spans to, a URL."""
    logits_processors: tuple[str, ...] = attrs.field(
        default=(), converter=_names, validator=_distinct_names
    )
    """Logits processors that serve every request, in the order of their work. Others serve the
    requests that give them arguments (`SamplingParams.extra_args`)."""

    @watermark.validator
    def _check_watermark(self, field: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1:
            raise _reject(field.name, value, "from 0 to below 1")

    def __attrs_post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise _reject(
                "max_num_batched_tokens",
                self.max_num_batched_tokens,
                f"at least max_num_seqs ({self.max_num_seqs}), so that every request advances",
            )
        if self.wants_kv_events and not self.enable_prefix_caching:
            raise _reject(
                "enable_prefix_caching",
                self.enable_prefix_caching,
                "True while kv_events_config enables events, for they tell what the cache holds",
            )
        self._check_prefills()
        if self.tensor_parallel_size > 1 and self.kv_transfer_config is not None:
            raise _reject(
                "tensor_parallel_size",
                self.tensor_parallel_size,
                "1 beside kv_transfer_config, for connectors reach the cache of one rank",
            )
        if self.skip_tokenizer_init and self.tokenizer is not None:
            raise _reject("tokenizer", self.tokenizer, "None while skip_tokenizer_init is True")
        if self.scheduling_policy == "lpm" and not self.enable_prefix_caching:
            raise _reject(
                "scheduling_policy", "lpm", "fcfs or priority while enable_prefix_caching is False"
            )

    @property
    def wants_kv_events(self) -> bool:
        """Somebody is told what the prefix cache holds."""
        return self.kv_events_config is not None and self.kv_events_config.active

    def _check_prefills(self) -> None:
        most, longs = self.max_num_partial_prefills, self.max_long_partial_prefills
        threshold = self.long_prefill_token_threshold
        if longs > most:
            raise _reject(
                "max_long_partial_prefills", longs, f"at most max_num_partial_prefills ({most})"
            )
        if self.max_model_len is not None and threshold > self.max_model_len:
            raise _reject(
                "long_prefill_token_threshold",
                threshold,
                f"at most max_model_len ({self.max_model_len})",
            )
        if self.enable_chunked_prefill:
            return
        if most > 1:
            raise _reject("max_num_partial_prefills", most, f"1 {_UNCHUNKED}")
        if threshold:
            raise _reject("long_prefill_token_threshold", threshold, f"0 {_UNCHUNKED}")

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        """Build from keyword options, under their own names or those of `ALIASES`.

        An unknown name is refused with the nearest known one.
        """
        known = [field.name for field in attrs.fields(cls)]
        for name in options:
            if name not in known and name not in ALIASES:
                raise unknown_option(name)
        return cls(**canonical(options))


def unknown_option(name: str) -> ConfigError:
    """The error for a name that no setting has, with the nearest that one has."""
    import difflib

    known = [*(field.name for field in attrs.fields(EngineConfig)), *ALIASES]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return ConfigError(f"unknown engine option {name!r}{hint}")
