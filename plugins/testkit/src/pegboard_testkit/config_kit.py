"""Tests that every decoder family's reading of configuration files passes.

A test file of a family subclasses `ConfigKit` under a name that begins with ``Test`` and says where
the family is and how its tests read files.
"""

from __future__ import annotations

import importlib
import logging
import re
import subprocess
import sys
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pegboard.api.model import ConfigInput, ModelFamily
from pegboard.errors import CheckpointError, ConfigError, UnsupportedError

__all__ = ["ConfigKit", "windows"]

GGUF_REFUSED: tuple[tuple[str, Any, type[Exception]], ...] = (
    ("expert_count", 8, UnsupportedError),
    ("rope.scaling.type", "yarn", UnsupportedError),
    ("rope.scaling.type", "spiral", ConfigError),
    ("rope.dimension_count", 8, ConfigError),
    ("attention.value_length", 8, ConfigError),
    ("block_count", 0, ConfigError),
)
"""Keys without the architecture, values that a dense model with heads of 16 may not have."""


def windows(config: Any) -> list[int | None]:
    """The sliding window of each layer's cache slot."""
    return [getattr(slot.spec, "window", None) for slot in config.facts.kv_slots]


class ConfigKit:
    """Tests of a family's configuration reader; every attribute and method must be given."""

    plugin: ModuleType
    """The plugin's package, which has one family, and the modules ``config`` and ``weights``."""
    claims: frozenset[str]
    """Some of what the family must claim, such as ``hf:LlamaForCausalLM``."""
    architecture: str
    """Of dense GGUF files."""
    known: ClassVar[dict[str, Any]]
    """Keys of a ``config.json`` that change nothing and are not warned of."""

    def hf(self, changes: dict[str, Any]) -> Any:
        """Read a good ``config.json`` with these `changes`."""
        raise AssertionError(f"{type(self).__name__} must define hf(changes)")

    def gguf(self, changes: dict[str, Any]) -> Any:
        """Read good metadata of `architecture`, with heads of 16, with these `changes`, whose keys
        begin with the architecture."""
        raise AssertionError(f"{type(self).__name__} must define gguf(changes)")

    @pytest.fixture
    def described(self) -> ModelFamily:
        """What the hook gives."""
        (family,) = self.plugin.pegboard_model_families()
        assert isinstance(family, ModelFamily)
        return family

    def test_the_hook_describes_the_family(self, described: ModelFamily) -> None:
        assert self.claims <= set(described.claims())
        config = importlib.import_module(f"{self.plugin.__name__}.config")
        assert described.config.load() is config.read_config
        assert callable(described.build.load())
        assert callable(described.weights.load())

    def test_the_configuration_is_read_without_torch(self) -> None:
        name = self.plugin.__name__
        code = (
            f"import sys, {name}, {name}.config, {name}.weights; sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_other_kinds_of_checkpoint_are_refused(self, described: ModelFamily) -> None:
        with pytest.raises(CheckpointError, match="'pickle'"):
            described.config.load()(ConfigInput({}, "pickle", self.architecture))

    def test_unknown_keys_are_named(self, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            self.hf(self.known)
            assert not caplog.records
            self.hf({"moon_phase": 3})
        assert "moon_phase" in caplog.text

    @pytest.mark.parametrize(("key", "value", "error"), GGUF_REFUSED)
    def test_gguf_features_that_are_not_built_are_refused_by_name(
        self, key: str, value: Any, error: type[Exception]
    ) -> None:
        full = f"{self.architecture}.{key}"
        with pytest.raises(error, match="rope_type" if "scaling" in key else re.escape(full)):
            self.gguf({full: value})
