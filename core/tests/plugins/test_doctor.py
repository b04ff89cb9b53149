"""The doctor: each thing that may be wrong is found, and nothing where nothing is."""

from __future__ import annotations

import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from pegboard.__about__ import __version__
from pegboard.plugins import LoadPolicy, doctor
from pegboard.plugins.doctor import Report, examine
from pegboard.plugins.import_check import import_faults

PIN = f"pegboard-core=={__version__}"
WITH_PARTS = """
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {{"platform": 0}}


@hookimpl
def pegboard_platforms():
    return [Platform(name={name!r}, probe="{parts}:probe", runtime="{parts}:runtime")]
"""
PARTS = "probe = runtime = print\n"


def add(site: Any, name: str, parts: str = PARTS, **options: Any) -> None:
    """A platform plugin whose probe and runtime stand in a module with the source `parts`."""
    source = WITH_PARTS.format(name=name, parts=f"{name}_parts")
    files = {f"{name}_module.py": source, f"{name}_parts.py": dedent(parts)}
    site.add(name, {f"platforms:{name}": f"{name}_module"}, files=files, **options)


def diagnosis(site: Any, allowlist: str | None = None, **options: Any) -> Report:
    environ = {} if allowlist is None else {"VLLM_PLUGINS": allowlist}
    return examine(environ=environ, search_path=[str(site.folder)], **options)


def findings(site: Any, *args: Any, **options: Any) -> list[tuple[str, str, str]]:
    report = diagnosis(site, *args, **options)
    return [(f.severity, f.check, f.message) for f in report.findings]


def test_nothing_is_found_where_nothing_is_wrong(site: Any) -> None:
    add(site, "acme", requires=[PIN, 'zebra>=1; extra == "zoo"', 'yak; python_version < "3"'])
    add(site, "other", "raise SystemExit")
    report = diagnosis(site, "acme")
    assert report.as_dict() == {"plugins": 2, "problems": 0, "warnings": 0, "findings": []}


def test_entries_of_the_allowlist(site: Any) -> None:
    add(site, "acme")
    found = findings(site, "acme,ac*,acmee", policy=LoadPolicy(only="acme,nobody"))
    assert [item[:2] for item in found] == [
        ("problem", "allowlist"),
        ("problem", "allowlist"),
        ("warning", "allowlist"),
    ]
    assert "'acmee'" in found[0][2] and "no_plugins_except entry 'nobody'" in found[1][2]
    assert "'ac*' also admits acme" in found[2][2]


def test_stale_metadata_that_hides_entry_points(site: Any) -> None:
    add(site, "acme")
    stale = site.folder / "acme.egg-info"
    stale.mkdir()
    (stale / "PKG-INFO").write_text("Name: Acme\nVersion: 0.9\n")
    ((severity, check, message),) = findings(site)
    assert (severity, check) == ("problem", "metadata")
    assert "acme is on the path 2 times" in message
    assert "acme.egg-info (0.9)" in message and "acme-1.0.dist-info (1.0)" in message


def test_the_same_metadata_twice_is_but_a_warning(site: Any) -> None:
    add(site, "acme")
    twin = site.folder / "acme.egg-info"
    twin.mkdir()
    for name, source in (("PKG-INFO", "METADATA"), ("entry_points.txt", "entry_points.txt")):
        (twin / name).write_text((site.folder / "acme-1.0.dist-info" / source).read_text())
    ((severity, check, message),) = findings(site)
    assert (severity, check) == ("warning", "metadata") and "2 times" in message


def test_metadata_that_cannot_be_read(site: Any) -> None:
    (site.folder / "odd-1.dist-info").mkdir()
    (site.folder / "odd-1.dist-info/entry_points.txt").write_text("[pegboard.models]\na = b\n")
    ((severity, check, message),) = findings(site)
    assert (severity, check) == ("problem", "metadata") and "odd-1.dist-info" in message


@pytest.mark.parametrize(
    ("group", "hint"),
    [
        ("pegboard.model", "did you mean 'pegboard.models'?"),
        ("pegboard.plugin", "did you mean 'pegboard.plugins'?"),
        ("pegboard_platforms", "did you mean 'pegboard.platforms'?"),
        ("Pegboard.Quant", "did you mean 'pegboard.quant'?"),
        ("vllm.general_plugin", "did you mean 'vllm.general_plugins'?"),
        ("pegboard", "groups are pegboard.attention, pegboard.connectors, pegboard.models"),
    ],
)
def test_an_entry_point_group_that_nobody_reads(site: Any, group: str, hint: str) -> None:
    add(site, "acme")
    info = site.folder / "lost-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: Lost\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"# ours\n[{group}]\nmine = lost\nother=lost.other\n")
    ((severity, check, message),) = findings(site)
    assert (severity, check) == ("warning", "entry points")
    where = f"lost: nobody loads what is in the entry-point group {group!r} (mine, other); "
    assert message.startswith(where + hint)
    assert message in site.load().notices


@pytest.mark.parametrize("group", ["pegboard.models", "vllm.general_plugins", "console_scripts"])
def test_an_entry_point_group_that_somebody_reads(site: Any, group: str) -> None:
    site.add("known", {}, files={"known.py": "PEGBOARD_API = {'model': 0}"})
    entry = site.folder / "known-1.0.dist-info/entry_points.txt"
    entry.write_text(f"[{group}]\nvllm-pegboard = known\n")
    assert not [f for f in findings(site) if f[1] == "entry points"]


def test_plugins_that_do_not_load(site: Any) -> None:
    site.add("late", {"platforms:late": "late"}, files={"late.py": "PEGBOARD_API = {'model': 7}"})
    site.add_source("PEGBOARD_API = {'model': 0}\nraise RuntimeError('boom')")
    for name in ("one", "two"):
        site.add_platform(name, "platforms:same" if name == "one" else "models:same")
    found = findings(site)
    assert [item[:2] for item in found] == [
        ("problem", "loading"),
        ("problem", "api level"),
        ("problem", "loading"),
        ("problem", "loading"),
    ]
    messages = " ".join(message for *_, message in found)
    for part in ("one 1.0", "two 1.0", "needs level 7", "boom"):
        assert part in messages


def test_requirements_that_do_not_hold(site: Any) -> None:
    site.add("zebra", {}, version="2.0")
    site.add("strange", {}, version="one")
    add(
        site,
        "acme",
        requires=[PIN, "zebra<2", "Zebra>=1", "yak~=3.0", "strange", "strange>1", "no good ("],
    )
    found = findings(site)
    assert {item[:2] for item in found} == {("problem", "requirements")}
    messages = [message.removeprefix("acme 1.0 ") for *_, message in found]
    assert messages[:3] == [
        "needs zebra<2, 2.0 is installed",
        "needs yak~=3.0, which is not installed",
        "needs strange>1, one is installed",
    ]
    assert messages[3].startswith("its requirement 'no good (' cannot be read")
    assert findings(site, "") == [], "what is left out need not fit"


def test_a_missing_pin_and_a_slow_import_are_warnings(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SLOW_IMPORT", 0.0)
    add(site, "acme", requires=[])
    found = findings(site)
    assert [item[:2] for item in found] == [("warning", "loading"), ("warning", "import time")]
    assert "does not require pegboard-core==" in found[0][2] and "s to load" in found[1][2]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            "import ctypes\nctypes.CDLL('libnowhere.so.3')",
            "acme 1.0 (acme): cannot import 'acme_parts:probe': OSError: libnowhere.so.3: cannot",
        ),
        ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module"),
        ("probe = print", "'acme_parts' has no attribute 'runtime'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (
            "import os, sys\nprint('last words', file=sys.stderr, flush=True)\nos._exit(7)",
            "ended the process with exit status 7: last words",
        ),
        ("import os\nos.kill(os.getpid(), 9)", "ended the process by signal 9"),
    ],
)
def test_parts_that_cannot_be_imported(site: Any, parts: str, said: str) -> None:
    add(site, "acme", parts)
    add(site, "sound", "print('noise')\n" + PARTS)
    found = findings(site)
    assert found and {item[:2] for item in found} == {("problem", "imports")}
    assert said in " ".join(message for *_, message in found)
    assert "sound" not in str(found)


def test_an_import_that_hangs_is_given_up_and_the_others_are_tried(
    site: Any, tmp_path: Path
) -> None:
    (site.folder / "hangs.py").write_text("import time\ntime.sleep(600)\n")
    (site.folder / "fine.py").write_text("x = 1\n")
    begin = time.monotonic()
    found = import_faults(["fine:x", "hangs:x", "fine:y", "fine:x"], timeout=1.0)
    assert time.monotonic() - begin < 60
    assert found == {
        "hangs:x": "the import did not end within 1 s",
        "fine:y": "'fine' has no attribute 'y' (from 'fine:y')",
    }
    assert import_faults([], timeout=1.0) == {}
