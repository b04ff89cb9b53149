"""The configuration kit fails for a family that does not keep its promises."""

from __future__ import annotations

import logging
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from pegboard.api.model import ModelFamily
from pegboard.errors import ConfigError, UnsupportedError
from pegboard_testkit.config_kit import ConfigKit

READERS = "pegboard.testing.tiny_config"


def family() -> ModelFamily:
    return ModelFamily(
        name="lax",
        architectures={"gguf": ("lax",)},
        config=f"{READERS}:read_tiny",
        weights=f"{READERS}:tiny_weights",
        build=f"{READERS}:TinyConfig",
    )


class Lax(ConfigKit):
    """A family that takes whatever it is given."""

    plugin = ModuleType("pegboard.testing")
    claims = frozenset({"hf:LaxForCausalLM"})
    architecture = "lax"
    known: ClassVar[dict[str, Any]] = {}

    def hf(self, changes: dict[str, Any]) -> Any:
        return changes

    def gguf(self, changes: dict[str, Any]) -> Any:
        return changes


def test_a_claim_that_is_missing_fails() -> None:
    with pytest.raises(AssertionError):
        Lax().test_the_hook_describes_the_family(family())


def test_a_configuration_that_needs_torch_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder = tmp_path / "lax_family"
    folder.mkdir()
    for name in ("__init__", "config", "weights"):
        (folder / f"{name}.py").touch()
    kit = Lax()
    kit.plugin = ModuleType("lax_family")
    kit.test_the_configuration_is_read_without_torch()
    (tmp_path / "torch.py").touch()
    (folder / "weights.py").write_text("import torch")
    with pytest.raises(AssertionError):
        kit.test_the_configuration_is_read_without_torch()


def test_a_reader_of_every_kind_of_file_fails() -> None:
    with pytest.raises(pytest.fail.Exception):
        Lax().test_other_kinds_of_checkpoint_are_refused(family())


def test_unknown_keys_that_nobody_names_fail(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(AssertionError):
        Lax().test_unknown_keys_are_named(caplog)


def test_a_warning_of_known_keys_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Loud(Lax):
        def hf(self, changes: dict[str, Any]) -> Any:
            logging.getLogger("pegboard").warning("moon_phase %s", changes)

    with pytest.raises(AssertionError):
        Loud().test_unknown_keys_are_named(caplog)


@pytest.mark.parametrize("error", [ConfigError, UnsupportedError])
def test_a_bad_value_that_is_taken_or_not_named_fails(error: type[Exception]) -> None:
    class Vague(Lax):
        def gguf(self, changes: dict[str, Any]) -> Any:
            raise error("something is wrong")

    with pytest.raises(pytest.fail.Exception):
        Lax().test_gguf_features_that_are_not_built_are_refused_by_name("block_count", 0, error)
    with pytest.raises(AssertionError):
        Vague().test_gguf_features_that_are_not_built_are_refused_by_name("block_count", 0, error)
