"""Reading a checkpoint's configuration so that no key is overlooked. Importable without torch.

A family reads every key that it understands through a `ConfigReader`, refuses by name those that
would change the computation in a way it cannot follow, and ends with `finish`, which reports what
nobody looked at.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Collection, Mapping
from typing import Any

from pegboard.errors import ConfigError, UnsupportedError

__all__ = ["HF_HARMLESS", "HF_HARMLESS_PREFIXES", "ConfigReader"]

_MISSING = object()
_SMALLEST, _LARGEST = 1.2e-38, 3.4e38
"""What float32 holds without loss, about: below it, digits go missing, and a quotient overflows."""
_logger = logging.getLogger("pegboard.nn.config")


HF_HARMLESS = frozenset(
    {
        "architectures",
        "attention_dropout",
        "auto_map",
        "hidden_dropout",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "model_type",
        "pad_token_id",
        "quantization_config",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "tokenizer_class",
        "unk_token_id",
        "use_cache",
    }
)
"""Keys of a ``config.json`` that no family reads: they change nothing here, or others read them."""
HF_HARMLESS_PREFIXES = ("_", "transformers", "output_", "return_")
LAYER_TYPES = ("full_attention", "sliding_attention")


class ConfigReader:
    """A mapping from a file, read key by key with checks. A null counts as absent.

    Every method raises `ConfigError` naming the key, the value and what is allowed. `default` makes
    a key optional.
    """

    def __init__(self, raw: Mapping[str, Any], source: str) -> None:
        self._raw = raw
        self._source = source
        self._seen: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it is."""
        self._seen.add(key)
        value = self._raw.get(key)
        return default if value is None else value

    def has(self, key: str) -> bool:
        """Whether the file has the key, null included."""
        self._seen.add(key)
        return key in self._raw

    def bad(self, key: str, value: object, allowed: str) -> ConfigError:
        """The error that says `key` has a value that is not allowed."""
        return ConfigError(f"{self._source}: {key}={reprlib.repr(value)} is not allowed: {allowed}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is _MISSING:
            raise ConfigError(f"{self._source}: {key} is missing")
        return value

    def integer(self, key: str, default: Any = _MISSING, least: int = 1) -> Any:
        """An integer of at least `least`; a default of None may come back."""
        value = self._required(key, default)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.bad(key, value, f"an integer of at least {least}")
        return value

    def uniform(self, key: str, default: Any = _MISSING) -> int:
        """An integer of at least 1, which some files write once per layer."""
        value = self.get(key)
        if not isinstance(value, (list, tuple)):
            return int(self.integer(key, default))
        if not value or any(item != value[0] for item in value):
            raise self.bad(key, value, "the same number for every layer")
        return int(ConfigReader({key: value[0]}, self._source).integer(key))

    def layer_types(self, layers: int) -> list[str] | None:
        """The kind of attention of each layer, ``full_attention`` or ``sliding_attention``; None
        where the file does not list them."""
        kinds = self.get("layer_types")
        if kinds is None:
            return None
        listed = isinstance(kinds, list) and len(kinds) == layers
        if not listed or any(kind not in LAYER_TYPES for kind in kinds):
            raise self.bad(
                "layer_types", kinds, f"a list of {layers} times {' or '.join(LAYER_TYPES)}"
            )
        return list(kinds)

    def dtype(self) -> str:
        """The torch name under ``dtype``, which older files call ``torch_dtype``; some write
        ``torch.bfloat16``. ``float32`` where the file says nothing."""
        older = self.get("torch_dtype", "float32")
        name = str(self.get("dtype", older)).removeprefix("torch.")
        known = ("float32", "float16", "bfloat16")
        if name not in known:
            raise self.bad("dtype", name, "one of " + ", ".join(known))
        return name

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A finite number above 0 that float32 holds with all its digits."""
        value = self._required(key, default)
        good = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not good or not _SMALLEST <= value <= _LARGEST:
            raise self.bad(key, value, f"a finite number above 0 ({_SMALLEST} to {_LARGEST})")
        return float(value)

    def flag(self, key: str, default: Any = _MISSING) -> bool:
        """True or false."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def text(self, key: str, default: Any = _MISSING, allowed: Collection[str] = ()) -> str:
        """A string, one of `allowed` unless that is empty."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.bad(key, value, "a string")
        if allowed and value not in allowed:
            raise self.bad(key, value, "one of " + ", ".join(sorted(allowed)))
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """Token ids: one integer, a list of them, or nothing."""
        value = self.get(key, [])
        found = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in found):
            raise self.bad(key, value, "a token id or a list of token ids")
        return tuple(dict.fromkeys(item for item in found if item >= 0))

    def refuse_unless(self, neutral: Mapping[str, Collection[Any]]) -> None:
        """Refuse keys that change the computation: each may be absent, null or one of its neutral
        values.

        Raises `UnsupportedError` naming the key.
        """
        for key, values in neutral.items():
            value = self.get(key)
            if value is not None and not any(_same(value, allowed) for allowed in values):
                raise UnsupportedError(
                    f"{self._source}: {key}={reprlib.repr(value)} is not supported yet"
                )

    def finish(self, harmless: Collection[str], prefixes: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Warn of keys that were neither read nor listed as harmless; gives their names."""
        unread = (key for key in self._raw if key not in self._seen and key not in harmless)
        unknown = tuple(sorted(key for key in unread if not key.startswith(prefixes)))
        if unknown:
            _logger.warning("%s: unknown keys are ignored: %s", self._source, ", ".join(unknown))
        return unknown


def _same(value: Any, allowed: Any) -> bool:
    """Equality that keeps ``1`` and ``True`` apart."""
    return isinstance(value, bool) == isinstance(allowed, bool) and bool(value == allowed)
