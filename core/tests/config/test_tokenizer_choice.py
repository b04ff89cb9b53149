"""Which tokeniser serves: the checkpoint's kind, one that finds its files, one asked for."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.api.checkpoint import TokenizerSpec
from pegboard.api.tokenizer import TokenizerClass
from pegboard.config.tokenizer import build_tokenizer, find_tokenizer
from pegboard.errors import (
    ConfigError,
    MissingPluginError,
    PluginError,
    SelectionError,
    UnsupportedError,
)
from pegboard.plugins import Board, load_plugins
from pegboard.testing.checkpoints import ByteVocabulary
from pegboard.text.tokenizer import Tokenizer

OWN = TokenizerSpec(ByteVocabulary().json(), "tokenizer.json", 259)
RUNES = attrs.evolve(OWN, source="runes.txt", kind="runes")


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("kinds_of_tests")

    def find(path: str) -> TokenizerSpec | None:
        return RUNES if (Path(path) / "runes.txt").exists() else None

    vars(module).update(
        find=find,
        build=lambda ctx: Tokenizer.from_spec(ctx.spec),
        fail=lambda ctx: ctx.nothing,
        nothing=lambda ctx: object(),
        text=lambda path: "runes",
    )
    monkeypatch.setitem(sys.modules, "kinds_of_tests", module)


def board(**kinds: dict[str, str]) -> Board:
    made = {
        name: TokenizerClass(name, **{part: f"kinds_of_tests:{f}" for part, f in parts.items()})
        for name, parts in kinds.items()
    }
    extra: Any = [("tokenizer", kind) for kind in made.values()]
    return load_plugins(environ={"VLLM_PLUGINS": ""}, extra=extra)


GOOD = {"build": "build", "find": "find"}


def none() -> TokenizerSpec:
    raise UnsupportedError("there is no tokenizer.json")


def test_the_checkpoints_own_goes_first_and_is_read_by_its_kind(tmp_path: Path) -> None:
    (tmp_path / "runes.txt").touch()
    both = board(runes=GOOD)
    assert find_tokenizer(both, str(tmp_path), lambda: OWN) is OWN
    assert build_tokenizer(both, OWN).encode("a", False) == [3 + ord("a")]
    with pytest.raises(MissingPluginError, match=r"tokeniser 'runes', wanted by runes\.txt"):
        build_tokenizer(board(), RUNES)


def test_where_there_is_none_the_kinds_look_for_their_files(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"no tokenizer\.json"):
        find_tokenizer(board(runes=GOOD), str(tmp_path), none)
    (tmp_path / "runes.txt").touch()
    assert find_tokenizer(board(runes=GOOD), str(tmp_path), none) is RUNES
    with pytest.raises(SelectionError, match="'runes', 'tablets'; set tokenizer_mode"):
        find_tokenizer(board(runes=GOOD, tablets=GOOD), str(tmp_path), none)
    assert find_tokenizer(board(runes=GOOD, tablets=GOOD), str(tmp_path), none, "runes") is RUNES


def test_a_mode_asks_for_one_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tokenizer_mode='runes' is not allowed here"):
        find_tokenizer(board(runes=GOOD), str(tmp_path), lambda: OWN, "runes")
    with pytest.raises(MissingPluginError, match="wanted by tokenizer_mode='runes'"):
        find_tokenizer(board(), str(tmp_path), lambda: OWN, "runes")
    only = board(runes={"build": "build"})
    assert find_tokenizer(only, str(tmp_path), lambda: OWN, "runes") is OWN
    assert build_tokenizer(only, OWN, "runes").vocab_size == 259


def test_a_kind_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="'runes' failed to build: AttributeError"):
        build_tokenizer(board(runes={"build": "fail"}), RUNES)
    with pytest.raises(PluginError, match="is no tokeniser: it lacks vocab_size, special_tokens"):
        build_tokenizer(board(runes={"build": "nothing"}), RUNES)
    with pytest.raises(PluginError, match="must return a TokenizerSpec or None, it returned a str"):
        find_tokenizer(board(runes={**GOOD, "find": "text"}), str(tmp_path), none)
