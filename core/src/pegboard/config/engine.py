"""The engine's settings, with the names that users know.

`EngineConfig` is frozen and checks each field when it is made. What depends on a model (its
context, its dtype) is decided later and lives in `ResolvedModel`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import attrs

from pegboard.api.transfer_config import KVTransferConfig
from pegboard.errors import ConfigError

__all__ = ["EngineConfig"]

DTYPES = ("auto", "float32", "bfloat16", "float16")
_DTYPE_ALIASES = {"float": "float32", "half": "float16"}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LOAD_FORMATS = ("auto", "dummy")

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]


def _reject(field: str, value: object, allowed: str) -> ConfigError:
    return ConfigError(f"{field}={value!r} is not allowed: {allowed}")


def _one_of(allowed: Collection[object]) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if value not in allowed:
            raise _reject(field.name, value, "one of " + ", ".join(map(str, allowed)))

    return check


def _integer(least: int, optional: bool = False) -> Validator:
    def check(_: Any, field: attrs.Attribute[Any], value: object) -> None:
        if value is None and optional:
            return
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            suffix = " or None" if optional else ""
            raise _reject(field.name, value, f"an integer of at least {least}{suffix}")

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


def _boolean(_: Any, field: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise _reject(field.name, value, "True or False")


def _dtype_name(value: Any) -> Any:
    """Accept ``torch.float32`` and the usual aliases where a dtype is wanted."""
    name = str(value).removeprefix("torch.") if not isinstance(value, str) else value
    return _DTYPE_ALIASES.get(name, name)


def _transfer_config(given: Any) -> KVTransferConfig | None:
    """Accept a mapping or JSON text where a connector's settings are wanted."""
    return None if given is None else KVTransferConfig.make(given)


@attrs.frozen(kw_only=True)
class EngineConfig:
    """Settings of one engine."""

    model: str = attrs.field(converter=str, validator=_text())
    """Path of a checkpoint, or a hub id."""
    tokenizer: str | None = attrs.field(default=None, validator=_text(optional=True))
    """Path or hub id of another checkpoint's tokeniser. None: the model's."""
    revision: str | None = attrs.field(default=None, validator=_text(optional=True))
    dtype: str = attrs.field(default="auto", converter=_dtype_name, validator=_one_of(DTYPES))
    """Compute dtype. ``auto``: the checkpoint's, as far as the device supports it."""
    kv_cache_dtype: str = attrs.field(
        default="auto", converter=_dtype_name, validator=_one_of(DTYPES)
    )
    quantization: str | None = attrs.field(default=None, validator=_text(optional=True))
    load_format: str = attrs.field(default="auto", validator=_one_of(LOAD_FORMATS))
    max_model_len: int | None = attrs.field(default=None, validator=_integer(1, optional=True))
    """Longest prompt plus output, in tokens. None: what the model was made for."""
    block_size: int = attrs.field(default=16, validator=_one_of(BLOCK_SIZES))
    """Tokens per KV block."""
    max_num_seqs: int = attrs.field(default=128, validator=_integer(1))
    """Most requests in a step."""
    max_num_batched_tokens: int = attrs.field(default=2048, validator=_integer(1))
    """Token budget of a step."""
    enable_chunked_prefill: bool = attrs.field(default=True, validator=_boolean)
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
    watermark: float = attrs.field(default=0.01)
    """Share of the blocks kept free when a waiting request is admitted."""
    seed: int = attrs.field(default=0, validator=_integer(0))
    """Seeds the draws of requests that bring no seed of their own."""
    platform: str | None = attrs.field(default=None, validator=_text(optional=True))
    attention_backend: str | None = attrs.field(default=None, validator=_text(optional=True))
    chat_template: str | None = attrs.field(default=None, validator=_text(optional=True))
    """Path or source of a template that replaces the model's, or the name of one of the model's."""
    kv_transfer_config: KVTransferConfig | None = attrs.field(
        default=None, converter=_transfer_config
    )
    """The KV connector: a mapping or its JSON text. None: no connector."""
    strict_plugins: bool = attrs.field(default=False, validator=_boolean)

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

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> EngineConfig:
        """Build from keyword options; an unknown name is refused with the nearest known one."""
        import difflib

        known = [field.name for field in attrs.fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ConfigError(f"unknown engine option {name!r}{hint}")
        return cls(**options)
