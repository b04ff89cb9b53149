"""`make dist`: what it complains of, and that what it builds installs, runs and serves."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import socket
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

VERSION = "1.0"
INFO = f"pegboard_hello-{VERSION}.dist-info"
METADATA = f"""Metadata-Version: 2.4
Name: pegboard-hello
Version: {VERSION}
Summary: Greets
License-Expression: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: pegboard-core=={VERSION}
Description-Content-Type: text/markdown

# pegboard-hello

Greets whoever is there, in several languages.
"""
FILES = {
    "pegboard_hello/__init__.py": "",
    "pegboard_hello/py.typed": "",
    f"{INFO}/METADATA": METADATA,
    f"{INFO}/WHEEL": "Wheel-Version: 1.0\n",
    f"{INFO}/entry_points.txt": "[pegboard.plugins]\nhello = pegboard_hello\n",
}


@pytest.fixture(scope="module")
def checks(repo_root: Path) -> ModuleType:
    path = repo_root / "scripts" / "dist_checks.py"
    spec = importlib.util.spec_from_file_location("dist_checks", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def digest(text: str) -> str:
    value = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
    return f"sha256={value.decode().rstrip('=')}"


@pytest.fixture
def faults(checks: ModuleType, tmp_path: Path) -> Callable[..., list[str]]:
    """Faults of a good wheel with some files changed; None leaves a file out."""

    def find(record: str | None = None, **changed: str | None) -> list[str]:
        names = {name.partition("/")[2].replace(".", "_"): name for name in FILES}
        files: dict[str, str | None] = {**FILES}
        files.update({names.get(name, name): text for name, text in changed.items()})
        kept = {name: text for name, text in files.items() if text is not None}
        rows = [f"{name},{digest(text)},{len(text)}" for name, text in kept.items()]
        kept[f"{INFO}/RECORD"] = record or "\n".join([*rows, f"{INFO}/RECORD,,"])
        wheel = tmp_path / f"pegboard_hello-{VERSION}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, text in kept.items():
                archive.writestr(name, text)
        return list(checks.wheel_faults(wheel, "pegboard-hello", VERSION))

    return find


def test_a_good_wheel_has_no_fault(faults: Callable[..., list[str]]) -> None:
    assert faults() == []


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"METADATA": METADATA.replace("Version: 1.0", "Version: 2.0")}, "Version is '2.0'"),
        ({"METADATA": METADATA.replace("Apache-2.0", "MIT")}, "License-Expression is 'MIT'"),
        ({"METADATA": METADATA.replace("core==1.0", "core>=1")}, "must be pegboard-core==1.0"),
        ({"METADATA": METADATA.replace("Greets\n", "\n")}, "Summary is empty"),
        ({"METADATA": METADATA.partition("\n\n")[0] + "\n\n"}, "the README is not in it"),
        ({"METADATA": None}, "no pegboard_hello-1.0.dist-info/METADATA"),
        ({"py_typed": None}, "py.typed is missing"),
        ({"pegboard_hello/__pycache__/x.pyc": ""}, "stray file"),
        ({"pegboard_hello/test_it.py": ""}, "stray file"),
        ({"pegboard_hello/.env": ""}, "stray file"),
        ({"core/__init__.py": ""}, "is not in pegboard_hello/"),
        ({"entry_points_txt": "[x]\nhello = pegboard_gone.y:z\n"}, "names 'pegboard_gone.y:z'"),
        ({"record": "x,,\n"}, "RECORD and content differ"),
    ],
)
def test_a_fault_of_a_wheel_is_found(
    faults: Callable[..., list[str]], changed: dict[str, Any], complaint: str
) -> None:
    found = faults(**changed)
    assert any(complaint in fault for fault in found), found


def test_a_changed_file_is_found_by_its_digest(faults: Callable[..., list[str]]) -> None:
    rows = [f"{name},{digest('other')},1" for name in FILES]
    found = faults(record="\n".join([*rows, f"{INFO}/RECORD,,"]))
    assert len(found) == len(FILES) and all("another digest" in fault for fault in found)


def test_a_stray_file_in_an_sdist_is_found(checks: ModuleType, tmp_path: Path) -> None:
    sdist, source = tmp_path / "a-1.0.tar.gz", tmp_path / "file"
    source.write_text("x")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("a-1.0/PKG-INFO", "a-1.0/README.md", "a-1.0/secret", "other/pyproject.toml"):
            archive.add(source, name)
    found = list(checks.sdist_faults(sdist, {Path("README.md")}))
    assert found == [
        "a-1.0.tar.gz: stray file secret",
        "a-1.0.tar.gz: other/pyproject.toml is no file in a-1.0/",
    ]


def make_dist(repo_root: Path, out: Path) -> Path:
    command = [sys.executable, str(repo_root / "scripts" / "dist.py"), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def dist(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dist(repo_root, tmp_path_factory.mktemp("dist") / "out")


@pytest.mark.accept
def test_all_members_are_built_without_a_fault_and_the_same_twice(
    repo_root: Path, workspace: ModuleType, dist: Path, tmp_path: Path
) -> None:
    sums = (dist / "SHA256SUMS").read_text()
    assert len(sums.splitlines()) == 2 * (1 + len(workspace.members(repo_root)))
    again = make_dist(repo_root, tmp_path / "again")
    assert (again / "SHA256SUMS").read_text() == sums


@contextmanager
def serving(command: list[str], folder: Path) -> Iterator[str]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    url, log = f"http://127.0.0.1:{port}", folder / "log"
    with (
        log.open("w") as sink,
        subprocess.Popen([*command, "--port", str(port)], cwd=folder, stderr=sink) as process,
    ):
        try:
            end = time.monotonic() + 300
            while not healthy(url):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, "it does not answer"
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.accept
def test_the_wheels_run_and_serve_in_a_fresh_environment(
    dist: Path, make_fresh: Any, smollm2_path: Path, tmp_path: Path
) -> None:
    fresh = make_fresh(tmp_path / "env")
    fresh.install(*sorted(dist.glob("*.whl")))
    answer = fresh.pegboard("run", str(smollm2_path), "Say hello.", "--max-tokens", "4")
    assert answer.returncode == 0 and answer.stdout.strip(), answer.stderr
    command = [str(fresh.folder / "bin" / "pegboard"), "serve", str(smollm2_path)]
    with serving(command, fresh.folder) as url:
        page = httpx.get(f"{url}/ui")
        assert page.status_code == 200 and "<title>Pegboard</title>" in page.text
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
        chat = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        assert chat["usage"]["completion_tokens"] == 3
        plugins = httpx.get(f"{url}/plugins").json()["plugins"]
    own = [p for p in plugins if p["distribution"] == "pegboard-webui"]
    assert own and own[0]["loaded"]
