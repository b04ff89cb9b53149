"""Files of blocks: what is refused, what a crash leaves, what processes do to each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pegboard.errors import ConfigError
from pegboard_connector_filesystem.blockfile import HEADER_BYTES, BlockFileError, Label
from pegboard_connector_filesystem.folder import STALE_SECONDS, Folder
from pegboard_connector_filesystem.names import Digest, block_name, parse_name
from pegboard_connector_filesystem.settings import Settings

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
SIZE = 1000
CONTENT = bytes(n % 251 for n in range(SIZE))
IDENTITY: dict[str, Any] = {
    "architecture": "LlamaForCausalLM",
    "weights": "00ff",
    "dtype": "float32",
    "quantization": None,
    "block_size": 16,
    "groups": [{"block_size": 16, "slots": ["0.self"], "spec": {"kind": "full"}}],
    "layouts": [["hnd", "block", "kv", "head", "token", "dim"]],
}


def open_folder(path: Path, identity: Any = None, sizes: Any = None, **options: Any) -> Folder:
    settings = Settings(path=str(path), **options)
    folder = Folder(settings, identity or IDENTITY, sizes or {0: SIZE, 1: SIZE})
    folder.prepare()
    return folder


def read(folder: Folder, group: int = 0, key: bytes = KEY, size: int = SIZE) -> bytes:
    content = bytearray(size)
    folder.read(group, key, memoryview(content))
    return bytes(content)


def file_of(path: Path) -> Path:
    (found,) = path.rglob("*.kv")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = open_folder(tmp_path)
    folder.write(0, KEY, memoryview(CONTENT))
    return folder


def test_what_was_written_is_read(folder: Folder, tmp_path: Path) -> None:
    assert read(folder) == CONTENT
    assert read(open_folder(tmp_path)) == CONTENT, "another engine of the same model"
    (found,) = folder.list(clean=True)
    assert (found.name, found.size) == (folder.name(0, KEY), HEADER_BYTES + SIZE)
    assert file_of(tmp_path).stat().st_size == found.size


def test_names_say_what_is_inside() -> None:
    name = block_name("0" * 32, 3, KEY)
    assert parse_name(name) == ("0" * 32, 3, KEY)
    for wrong in (name + ".tmp", name[1:], name.replace("/3-", "/03-"), "notes.txt", "../x.kv"):
        assert parse_name(wrong) is None, wrong


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("architecture", "MistralForCausalLM"),
        ("weights", "00fe"),
        ("dtype", "bfloat16"),
        ("quantization", "gguf"),
        ("block_size", 32),
        ("groups", [{"block_size": 16, "slots": ["0.self"], "spec": {"kind": "sliding"}}]),
        ("layouts", [["nhd", "block", "kv", "token", "head", "dim"]]),
    ],
)
def test_another_identity_finds_nothing_and_refuses_a_file_put_in_its_place(
    folder: Folder, tmp_path: Path, field: str, value: Any
) -> None:
    other = open_folder(tmp_path, {**IDENTITY, field: value})
    with pytest.raises(FileNotFoundError):
        read(other)
    copy = tmp_path / other.name(0, KEY)
    copy.parent.mkdir(parents=True)
    copy.write_bytes((tmp_path / folder.name(0, KEY)).read_bytes())
    with pytest.raises(BlockFileError, match="identity"):
        read(other)


def test_the_order_of_facts_does_not_matter() -> None:
    assert Digest(dict(reversed(IDENTITY.items()))).full == Digest(IDENTITY).full


@pytest.mark.parametrize(("group", "key", "why"), [(1, KEY, "group"), (0, OTHER, "key")])
def test_a_file_under_the_name_of_another_block_is_refused(
    folder: Folder, tmp_path: Path, group: int, key: bytes, why: str
) -> None:
    wrong = tmp_path / folder.name(group, key)
    wrong.parent.mkdir(parents=True, exist_ok=True)
    file_of(tmp_path).rename(wrong)
    with pytest.raises(BlockFileError, match=why):
        read(folder, group, key)


def test_every_byte_is_protected(folder: Folder, tmp_path: Path) -> None:
    path = file_of(tmp_path)
    good = path.read_bytes()
    covered = [*range(132), *range(HEADER_BYTES, len(good), 37), len(good) - 1]
    for place in covered:
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(BlockFileError):
            read(folder)
    path.write_bytes(good)
    assert read(folder) == CONTENT


@pytest.mark.parametrize("length", [0, 10, HEADER_BYTES, HEADER_BYTES + SIZE - 1])
def test_a_file_that_was_cut_short_is_refused_and_cleaned_away(
    folder: Folder, tmp_path: Path, length: int
) -> None:
    os.truncate(file_of(tmp_path), length)
    with pytest.raises(BlockFileError, match="size"):
        read(folder)
    assert folder.list(clean=False) == [] and file_of(tmp_path).exists()
    assert folder.list(clean=True) == [] and not list(tmp_path.rglob("*.kv"))


def test_a_file_that_is_too_long_is_refused(folder: Folder, tmp_path: Path) -> None:
    with file_of(tmp_path).open("ab") as file:
        file.write(b"x")
    with pytest.raises(BlockFileError, match="size"):
        read(folder)


def test_files_without_checksum_are_only_for_those_who_want_none(tmp_path: Path) -> None:
    careless = open_folder(tmp_path, checksum=False)
    careless.write(0, KEY, memoryview(CONTENT))
    assert read(careless) == CONTENT
    with pytest.raises(BlockFileError, match="no checksum"):
        read(open_folder(tmp_path))


def test_with_fsync_the_file_is_the_same(tmp_path: Path, folder: Folder) -> None:
    plain = file_of(tmp_path).read_bytes()
    open_folder(tmp_path, fsync=True).write(0, KEY, memoryview(CONTENT))
    assert file_of(tmp_path).read_bytes() == plain


def test_a_failed_write_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = open_folder(tmp_path)
    real, calls = os.write, []

    def full(file: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) > 2:
            raise OSError(28, "No space left on device")
        return real(file, data[:100])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        folder.write(0, KEY, memoryview(CONTENT))
    assert calls and not [path for path in tmp_path.rglob("*") if ".kv" in path.name]


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 64"):
        Label(bytes(32), 0, bytes(65), SIZE).header(memoryview(CONTENT), checksum=True)


def test_files_of_others_are_counted_or_let_be(folder: Folder, tmp_path: Path) -> None:
    other = open_folder(tmp_path, {**IDENTITY, "dtype": "float16"}, {0: 10})
    other.write(0, KEY, memoryview(CONTENT[:10]))
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "photos" / "aa").mkdir(parents=True)
    (tmp_path / "photos" / "aa" / "0-aa.kv").write_text("mine too")
    names = {found.name for found in folder.list(clean=True)}
    assert names == {folder.name(0, KEY), other.name(0, KEY)}
    assert (tmp_path / "notes.txt").exists() and (tmp_path / "photos/aa/0-aa.kv").exists()


def test_what_changes_while_the_folder_is_listed_is_in_the_list(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = folder._walk

    def slow(clean: bool) -> list[Any]:
        found = [*walk(clean)]
        folder.remove(folder.name(0, KEY))
        folder.write(1, OTHER, memoryview(CONTENT))
        return found

    monkeypatch.setattr(folder, "_walk", slow)
    assert [found.name for found in folder.list(clean=True)] == [folder.name(1, OTHER)]


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="path="):
            open_folder(path)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "'path' is missing"),
        ({"path": ""}, "path=''"),
        ({"path": "a\0b"}, r"path='a\\x00b' is not allowed: .* \(without NUL\)"),
        ({"path": "a\ud800b"}, "path=.* is not allowed"),
        ({"path": "~nobody of this name/x"}, "path='~nobody of this name/x' is not allowed"),
        ({"path": "x", "maxbytes": 1}, "did you mean 'max_bytes'"),
        ({"path": "x", "max_bytes": 0}, "max_bytes=0"),
        ({"path": "x", "eviction": "fifo"}, "lru, arc"),
        ({"path": "x", "threads": True}, "threads=True"),
        ({"path": "x", "fsync": 1}, "fsync=1"),
        ({"path": "x", "load_timeout": -1}, "load_timeout=-1"),
    ],
)
def test_settings_are_checked(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Settings.read(options)


WRITER = """
import sys, itertools
from pathlib import Path
from pegboard_connector_filesystem.folder import Folder
from pegboard_connector_filesystem.settings import Settings
folder = Folder(Settings(path=sys.argv[1]), {"model": "m"}, {0: 4_000_000})
folder.prepare()
content = memoryview(bytes([7]) * 4_000_000)
print("ready", flush=True)
for number in itertools.count():
    folder.write(0, (number % 5).to_bytes(32, "big"), content)
"""


def start_writer(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def check_all(folder: Folder) -> int:
    good = 0
    for number in range(5):
        try:
            content = read(folder, 0, number.to_bytes(32, "big"), 4_000_000)
        except FileNotFoundError:
            continue
        assert content == bytes([7]) * 4_000_000
        good += 1
    return good


def test_a_writer_killed_at_any_moment_leaves_no_bad_block(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, {"model": "m"}, {0: 4_000_000})
    for turn in range(6):
        process = start_writer(tmp_path)
        time.sleep(0.02 + 0.013 * turn)
        process.send_signal(signal.SIGKILL)
        process.wait()
        check_all(folder)
    assert check_all(folder) > 0, "nothing was written"
    leftovers = list(tmp_path.rglob("*.tmp"))
    leftovers.append(file_of_leftover(tmp_path))
    folder.list(clean=True)
    assert all(path.exists() for path in leftovers), "they may still be at work"
    for path in leftovers:
        os.utime(path, (0, time.time() - STALE_SECONDS - 5))
    found = folder.list(clean=True)
    assert not list(tmp_path.rglob("*.tmp")), "what the dead left is removed"
    assert len(found) == check_all(folder)


def file_of_leftover(tmp_path: Path) -> Path:
    """Half a block, as a killed process leaves it."""
    path = next(tmp_path.rglob("*.kv"))
    path = path.with_name(f"{path.name}.host-1-2-3.tmp")
    path.write_bytes(b"half")
    return path


def test_two_processes_may_write_and_remove_the_same_blocks(tmp_path: Path) -> None:
    folder = open_folder(tmp_path, {"model": "m"}, {0: 4_000_000})
    writers = [start_writer(tmp_path) for _ in range(2)]
    try:
        end, good = time.monotonic() + 1.5, 0
        while time.monotonic() < end:
            good += check_all(folder)
            folder.remove(folder.name(0, (2).to_bytes(32, "big")))
            folder.list(clean=True)
        assert all(writer.poll() is None for writer in writers), "a writer failed"
        assert good > 0
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
