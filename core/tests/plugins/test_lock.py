"""Locks: what they hold, every way in which an installation can differ, and what then loads."""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.__about__ import __version__
from pegboard.errors import ConfigError, PluginError
from pegboard.plugins import LoadPolicy
from pegboard.plugins.admission import admit
from pegboard.plugins.lock import Lock, differences, make_lock

PACKAGE = {
    "acme_pkg/__init__.py": "PEGBOARD_API = {'platform': 0}\n",
    "acme_pkg/inner/deep.py": "x = 1\n",
    "acme_pkg/data/table.bin": "some bytes",
    "acme_pkg/__pycache__/gone.cpython-311.pyc": "cached",
    "../bin/acme": "a script\n",
}


class Locked:
    """A site, the lock that was made of it, and what differs now."""

    def __init__(self, site: Any, tmp_path: Path, allowlist: str | None = None) -> None:
        self.site = site
        self.path = str(tmp_path / "plugins.lock")
        self.environ = {} if allowlist is None else {"VLLM_PLUGINS": allowlist}
        self.lock = make_lock(self.admitted(), self.search_path)
        self.lock.write(self.path)

    @property
    def search_path(self) -> list[str]:
        return [str(self.site.folder)]

    def admitted(self) -> Any:
        return admit(self.environ, LoadPolicy(), self.search_path).admitted

    def differences(self) -> list[str]:
        return list(differences(Lock.read(self.path), self.admitted(), self.search_path))


@pytest.fixture
def locked(site: Any, tmp_path: Path) -> Locked:
    site.add("acme", {"platforms:acme": "acme_pkg"}, files=PACKAGE)
    site.add_platform("other", "platforms:other")
    return Locked(site, tmp_path)


def test_a_lock_has_every_plugin_and_the_hash_of_every_file(locked: Locked) -> None:
    content = json.loads(Path(locked.path).read_text())
    assert content["core"] == __version__
    assert content["plugins"][0] == {
        "id": "acme",
        "group": "pegboard.platforms",
        "distribution": "acme",
        "version": "1.0",
    }
    files = content["files"]["acme"]
    assert set(files) == {
        "../bin/acme",
        "acme-1.0.dist-info/METADATA",
        "acme-1.0.dist-info/entry_points.txt",
        "acme_pkg/__init__.py",
        "acme_pkg/data/table.bin",
        "acme_pkg/inner/deep.py",
    }
    for name, digest in files.items():
        assert digest == sha256((locked.site.folder / name).read_bytes()).hexdigest(), name
    assert locked.differences() == []


def test_locking_and_comparing_import_nothing(locked: Locked) -> None:
    locked.differences()
    assert not {"acme_pkg", "other_module"} & sys.modules.keys()


def test_one_byte_in_any_file_is_a_difference(locked: Locked) -> None:
    for distribution, files in locked.lock.files.items():
        for name in files:
            path = locked.site.folder / name
            before = path.read_bytes()
            path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
            assert f"{distribution} 1.0: file {name} was changed" in locked.differences(), name
            path.write_bytes(before)
    assert locked.differences() == []


def test_the_hashes_of_the_record_are_not_believed(locked: Locked) -> None:
    record = locked.site.folder / "acme-1.0.dist-info/RECORD"
    deep = locked.site.folder / "acme_pkg/inner/deep.py"
    deep.write_text("x = 2\n")
    record.write_text(record.read_text().replace("acme_pkg/inner/deep.py,,\n", ""))
    assert locked.differences() == ["acme 1.0: file acme_pkg/inner/deep.py was changed"]


def test_removed_files_are_named(locked: Locked) -> None:
    (locked.site.folder / "acme_pkg/data/table.bin").unlink()
    assert locked.differences() == ["acme 1.0: file acme_pkg/data/table.bin was removed"]


@pytest.mark.parametrize(
    "name",
    [
        "acme_pkg/inner/sneaked.py",
        "acme_pkg/new/deeper/sneaked.so",
        "acme_pkg.py",
        "other_module/__init__.py",
        "other_module.so",
    ],
)
def test_files_in_no_record_that_import_as_part_of_it_are_named(locked: Locked, name: str) -> None:
    path = locked.site.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("raise SystemExit")
    owner = "acme" if name.startswith("acme") else "other"
    assert f"{owner} 1.0: file {name} was added" in locked.differences()


def test_caches_and_files_elsewhere_are_no_difference(locked: Locked) -> None:
    for name in ("acme_pkg/inner/__pycache__/deep.cpython-311.pyc", "unrelated.py", "acme-2.txt"):
        (locked.site.folder / name).parent.mkdir(exist_ok=True)
        (locked.site.folder / name).write_text("x")
    assert locked.differences() == []


def test_a_link_that_leads_back_ends(locked: Locked) -> None:
    os.symlink(locked.site.folder / "acme_pkg", locked.site.folder / "acme_pkg/inner/loop")
    assert locked.differences() == []


def test_a_package_shared_with_another_distribution_is_no_difference(
    site: Any, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        files = {f"shared/{name}.py": "PEGBOARD_API = {'model': 0}\n"}
        site.add(name, {f"models:{name}": f"shared.{name}"}, files=files)
    locked = Locked(site, tmp_path)
    assert set(locked.lock.files["one"]) == {
        "one-1.0.dist-info/METADATA",
        "one-1.0.dist-info/entry_points.txt",
        "shared/one.py",
    }
    (site.folder / "shared/__init__.py").write_text("")
    assert "one 1.0: file shared/__init__.py was added" in locked.differences()


def test_what_another_distribution_puts_into_its_package_is_a_difference(locked: Locked) -> None:
    locked.site.add("guest", {}, files={"acme_pkg/inner/guest.py": ""})
    assert locked.differences() == ["acme 1.0: file acme_pkg/inner/guest.py was added"]


def test_a_board_that_is_there_can_be_compared(locked: Locked) -> None:
    (locked.site.folder / "acme_pkg/__init__.py").unlink()
    board = locked.site.load()
    with pytest.raises(PluginError, match=r"acme_pkg/__init__\.py was removed"):
        board.check_lock(locked.path)


def test_a_module_that_hides_it_is_named(
    locked: Locked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/acme_pkg.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    (found,) = locked.differences()
    assert "acme 1.0: module acme_pkg would be imported from" in found and "first" in found


def test_another_version_a_new_plugin_and_one_that_is_gone_are_named(locked: Locked) -> None:
    folder = locked.site.folder
    (folder / "other-1.0.dist-info/METADATA").write_text("Name: other\nVersion: 1.1\n")
    for file in (folder / "acme-1.0.dist-info").iterdir():
        file.unlink()
    locked.site.add_platform("newcomer", "platforms:newcomer")
    found = locked.differences()
    assert "plugin platforms:other of other 1.1 is not in the lock" in found
    assert "plugin platforms:newcomer of newcomer 1.0 is not in the lock" in found
    assert "acme is locked and not installed" in found


def test_another_core_is_a_difference(locked: Locked) -> None:
    text = Path(locked.path).read_text().replace(f'"core": "{__version__}"', '"core": "0.0.7"')
    Path(locked.path).write_text(text)
    (found,) = locked.differences()
    assert found == f"pegboard-core 0.0.7 is locked, {__version__} is installed"


def test_what_the_allowlist_leaves_out_is_neither_locked_nor_missed(
    site: Any, tmp_path: Path
) -> None:
    for name in ("acme", "other"):
        site.add_platform(name, f"platforms:{name}")
    narrow = Locked(site, tmp_path, "acme")
    assert set(narrow.lock.files) == {"acme"}
    assert narrow.differences() == []
    narrow.environ = {}
    assert narrow.differences() == ["plugin platforms:other of other 1.0 is not in the lock"]
    wide = Locked(site, tmp_path)
    wide.environ = {"VLLM_PLUGINS": "acme"}
    assert wide.differences() == []


def test_an_editable_install_is_refused_by_name(site: Any, tmp_path: Path) -> None:
    site.add_platform("acme", "platforms:acme")
    locked = Locked(site, tmp_path)
    origin = '{"url": "file:///source", "dir_info": {"editable": true}}'
    (site.folder / "acme-1.0.dist-info/direct_url.json").write_text(origin)
    with pytest.raises(PluginError, match=r"cannot be locked: acme 1\.0: editable install"):
        Locked(site, tmp_path)
    assert locked.differences()[0].startswith("acme 1.0: editable install")


def test_what_cannot_be_locked_is_said_with_what_to_do(site: Any, tmp_path: Path) -> None:
    origin = '{"url": "file:///source", "dir_info": {"editable": true}}'
    for name in ("acme", "other", "whole", "broken"):
        site.add_platform(name, f"platforms:{name}")
    for name in ("acme", "other"):
        (site.folder / f"{name}-1.0.dist-info/direct_url.json").write_text(origin)
    (site.folder / "broken_module.py").unlink()
    with pytest.raises(PluginError) as caught:
        Locked(site, tmp_path)
    said = str(caught.value)
    assert "acme 1.0, other 1.0: editable install" in said and "whole" not in said
    assert "'make dist'" in said and "pip wheel --no-deps --wheel-dir dist FOLDER" in said
    assert "--find-links dist acme other'" in said
    assert "Install broken again, with 'pip install --force-reinstall'" in said


def test_where_only_what_may_load_differs_the_value_that_mends_it_is_told(
    locked: Locked, capsys: pytest.CaptureFixture[str]
) -> None:
    locked.site.add_platform("newcomer", "platforms:newcomer")
    expected = "set VLLM_PLUGINS=acme,other; or write a new lock"
    with pytest.raises(PluginError) as caught:
        locked.site.load(policy=LoadPolicy(lock=locked.path))
    assert expected in str(caught.value) and "VLLM_PLUGINS is not set" in str(caught.value)
    assert "platforms:newcomer of newcomer 1.0 is not in the lock" in str(caught.value)
    states = [
        r.state for r in locked.site.load("acme,other", policy=LoadPolicy(lock=locked.path)).plugins
    ]
    assert sorted(states) == ["blocked", "failed", "ready"]
    (locked.site.folder / "acme_pkg/inner/deep.py").write_text("x = 2\n")
    with pytest.raises(PluginError) as caught:
        locked.site.load(policy=LoadPolicy(lock=locked.path))
    assert "VLLM_PLUGINS" not in str(caught.value), "more than that differs"


def test_what_is_installed_without_a_list_or_not_whole_is_refused(
    site: Any, tmp_path: Path
) -> None:
    site.add("acme", {"platforms:acme": "acme_pkg"}, files=PACKAGE)
    (site.folder / "acme_pkg/inner/deep.py").unlink()
    with pytest.raises(PluginError, match=r"acme 1\.0: not complete, without acme_pkg/inner/deep"):
        Locked(site, tmp_path)
    (site.folder / "acme-1.0.dist-info/RECORD").unlink()
    with pytest.raises(PluginError, match=r"acme 1\.0: no list of installed files \(RECORD\)"):
        Locked(site, tmp_path)


def test_nothing_is_imported_from_an_installation_that_differs(locked: Locked) -> None:
    module = locked.site.add_source("raise SystemExit('imported')")
    with pytest.raises(PluginError, match=r"plugins:odd of odd 1\.0 is not in the lock"):
        locked.site.load(policy=LoadPolicy(lock=locked.path))
    assert not {module, "acme_pkg", "other_module"} & sys.modules.keys()


def test_what_is_as_locked_loads(site: Any, tmp_path: Path) -> None:
    site.add_platform("acme", "platforms:acme")
    path = Locked(site, tmp_path).path
    (record,) = site.load(policy=LoadPolicy(lock=path)).plugins
    assert record.state == "ready"


def test_an_error_lists_the_first_differences_and_counts_the_rest(locked: Locked) -> None:
    for number in range(12):
        (locked.site.folder / f"acme_pkg/new{number:02}.py").write_text("")
    with pytest.raises(PluginError, match=r"new09\.py was added; and 2 more\. Install what was"):
        locked.site.load(policy=LoadPolicy(lock=locked.path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "no plugin lock of format 1"),
        ('{"format": 2}', "no plugin lock of format 1"),
        ('{"format": 1, "core": "1"}', "is damaged: KeyError"),
        ('{"format": 1, "core": "1", "plugins": [{"id": "x"}], "files": {}}', "is damaged"),
        ('{"format": 1, "core": "1", "plugins": [], "files": {"a": {"b": 3}}}', "not a string"),
        (
            '{"format": 1, "core": "1", "plugins": [{"id": "x", "group": "g", "distribution": "d",'
            ' "version": "1"}], "files": {}}',
            "no files of d",
        ),
    ],
)
def test_a_file_that_is_no_lock_is_refused(
    site: Any, tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "a.lock"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        site.load(policy=LoadPolicy(lock=str(path)))


@pytest.mark.parametrize("place", ["folder", "file/below.lock", "absent/below.lock"])
def test_what_cannot_be_written_is_said_and_leaves_nothing_behind(
    locked: Locked, tmp_path: Path, place: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=f"{place}' cannot be written: "):
        locked.lock.write(str(tmp_path / place))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lock_that_cannot_take_its_place_leaves_the_old_one(
    locked: Locked, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = Path(locked.path), Path(locked.path).read_text()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ConfigError, match=r"cannot be written: .*No space left"):
        attrs.evolve(locked.lock, core="another").write(locked.path)
    assert path.read_text() == before
    assert [p.name for p in path.parent.glob("plugins.lock*")] == ["plugins.lock"]
