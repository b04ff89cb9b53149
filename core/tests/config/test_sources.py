from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.utils._paths import filter_repo_objects

from pegboard.api.checkpoint import CheckpointSource
from pegboard.config import sources
from pegboard.config.sources import find_checkpoint, open_checkpoint, open_tokenizer, select_source
from pegboard.errors import (
    CheckpointError,
    ConfigError,
    MissingPluginError,
    PluginError,
    SelectionError,
)
from pegboard.plugins import Board, build_board
from pegboard.testing.checkpoints import write_tiny_model
from pegboard.testing.toy_connected import installed_board


def board(*extra: CheckpointSource) -> Board:
    return build_board(
        environ={"VLLM_PLUGINS": ""}, extra=[("checkpoint", source) for source in extra]
    )


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CheckpointSource]:
    """A source that answers every probe with `answer`, or raises it."""
    module: Any = ModuleType("toy_sources_for_tests")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def make(name: str, answer: Any) -> CheckpointSource:
        def probe(path: str) -> bool:
            if isinstance(answer, Exception):
                raise answer
            return bool(answer)

        setattr(module, f"probe_{name}", probe)
        setattr(module, f"open_{name}", lambda path: (name, path))
        return CheckpointSource(
            name, f"{module.__name__}:probe_{name}", f"{module.__name__}:open_{name}"
        )

    return make


def test_a_path_that_exists_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_checkpoint(str(tmp_path)) == str(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_checkpoint("~") == str(tmp_path)
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "name").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("owner/name") == "owner/name"


@pytest.mark.parametrize(
    "model",
    [
        "/nowhere/at/all",
        "./missing",
        "../missing",
        "~/missing",
        "a/b/c",
        "model.gguf",
        "C:\\models\\x",
    ],
)
def test_a_path_that_does_not_exist_is_not_looked_up_on_the_hub(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked the hub")
    )
    with pytest.raises(ConfigError, match="no such file or directory"):
        find_checkpoint(model)


@pytest.mark.parametrize("model", ["two words", "owner/", "a--b/c..d", "-x/y", "owner/na:me"])
def test_a_name_that_is_neither_path_nor_hub_id_is_refused(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("asked the hub")
    )
    with pytest.raises(ConfigError):
        find_checkpoint(model)


def test_a_revision_belongs_to_hub_ids(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="revision='main' is not allowed"):
        find_checkpoint(str(tmp_path), "main")


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("model.safetensors", True),
        ("model-00001-of-00002.safetensors", True),
        ("model.safetensors.index.json", True),
        ("config.json", True),
        ("tokenizer.json", True),
        ("chat_template.jinja", True),
        ("additional_chat_templates/tool_use.jinja", True),
        ("pytorch_model.bin", False),
        ("pytorch_model-00001-of-00002.bin", False),
        ("original/consolidated.00.pth", False),
        ("original/model.safetensors", False),
        ("consolidated.safetensors", False),
        ("adapter_model.safetensors", False),
        ("model.Q4_1.gguf", False),
        ("modeling_custom.py", False),
        ("onnx/config.json", False),
    ],
)
def test_of_a_hub_repository_only_what_is_read_is_fetched_and_never_a_pickle(
    file: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return "/cache/snapshot"

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert find_checkpoint("owner/name", "v1") == "/cache/snapshot"
    assert (asked["name"], asked["revision"]) == ("owner/name", "v1")
    kept = filter_repo_objects(
        [file], allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(kept) == ([file] if wanted else [])


def test_offline_and_not_in_the_cache_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="offline mode is on") as caught:
        find_checkpoint("owner/name")
    assert "'owner/name'" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_offline_a_cached_snapshot_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--owner--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    assert find_checkpoint("owner/name") == str(snapshot)


def test_any_failure_of_the_hub_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise OSError("connection refused\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("owner/name")
    assert "OSError: connection refused" in str(caught.value)
    assert "long story" not in str(caught.value)


def test_exactly_one_source_may_say_yes(tmp_path: Path, source: Any) -> None:
    both = board(source("one", True), source("two", True), source("three", False))
    with pytest.raises(SelectionError, match=r"'one'.*'two'") as caught:
        select_source(both, str(tmp_path))
    assert "three" not in str(caught.value)
    single = board(source("one", False), source("two", True))
    assert open_checkpoint(single, str(tmp_path)) == ("two", str(tmp_path))  # type: ignore[comparison-overlap]


def test_a_probe_that_fails_is_blamed(tmp_path: Path, source: Any) -> None:
    with pytest.raises(PluginError, match=r"probe of checkpoint source 'one' failed on .*KeyError"):
        select_source(board(source("one", KeyError("x"))), str(tmp_path))


def test_a_file_of_a_kind_that_no_plugin_reads_names_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    with pytest.raises(MissingPluginError, match="checkpoint source 'gguf'") as caught:
        select_source(board(), str(path))
    assert str(path) in str(caught.value)


def test_a_directory_that_holds_only_gguf_files_suggests_one(tmp_path: Path) -> None:
    (tmp_path / "model.Q4_1.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="one must be given") as caught:
        select_source(board(), str(tmp_path))
    assert str(tmp_path / "model.Q4_1.gguf") in str(caught.value)


@pytest.mark.parametrize("names", [[], ["readme.md"]])
def test_a_directory_that_nothing_reads_says_what_was_looked_for(
    names: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("x")
    with pytest.raises(CheckpointError, match=r"asked were 'hf'\).*config\.json") as caught:
        select_source(board(), str(tmp_path))
    assert "readme" not in str(caught.value), "what else is in there is the user's own"


@pytest.mark.parametrize("name", ["a" * 97, "owner/" + "a" * 97, "a" * 10**6, "owner/a b", "a\0b"])
def test_a_name_that_no_repository_can_have_is_not_looked_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_fetch", lambda *_: pytest.fail("asked the hub"))
    with pytest.raises(ConfigError, match=r"model=.*is not allowed: a path that exists") as caught:
        find_checkpoint(name)
    assert len(str(caught.value)) < 1500


def test_a_tokeniser_that_is_not_there_is_blamed_on_its_own_setting() -> None:
    for location in ("./no-such-folder", "owner/a b"):
        with pytest.raises(ConfigError, match=r"^tokenizer="):
            open_tokenizer(board(), location)


def test_a_folder_without_a_tokeniser_is_blamed_on_the_setting_too(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"^tokenizer=.*no checkpoint source"):
        open_tokenizer(board(), str(tmp_path))


def test_a_directory_that_may_not_be_listed_is_said_to_be_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "listdir", refuse)
    with pytest.raises(CheckpointError, match="cannot be read: Permission denied") as caught:
        select_source(board(), str(tmp_path))
    assert str(tmp_path) in str(caught.value)


def test_a_file_without_a_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("x")
    with pytest.raises(
        CheckpointError, match="no checkpoint source can read this file; asked were 'hf'"
    ):
        select_source(board(), str(tmp_path / "model"))


def test_a_tokeniser_needs_no_model_beside_it(tmp_path: Path) -> None:
    content = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert open_tokenizer(board(), str(tmp_path)).vocab_size == 1


FILES = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
    "model.safetensors",
]


@pytest.mark.parametrize("name", FILES)
def test_a_pipe_in_the_place_of_a_file_is_refused_at_once(tmp_path: Path, name: str) -> None:
    model = write_tiny_model(tmp_path / "model")
    (model / name).unlink(missing_ok=True)
    os.mkfifo(model / name)
    with pytest.raises(CheckpointError, match=rf"{re.escape(name)}: (is )?not a regular file"):
        open_checkpoint(installed_board(), str(model)).tokenizer()


def test_a_pipe_is_no_model_and_no_tokeniser(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for use in (open_checkpoint, open_tokenizer):
        with pytest.raises(CheckpointError, match="pipe: is not a regular file, nor a directory"):
            use(installed_board(), str(pipe))
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        open_tokenizer(board(), str(folder))
