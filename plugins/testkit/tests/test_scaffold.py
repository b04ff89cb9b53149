"""`pegboard plugins new` writes plugins that install and pass their tests as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pegboard.api.levels import API_LEVELS
from pegboard.errors import ConfigError
from pegboard.testing.checkpoints import write_tiny_model
from pegboard_testkit.scaffold import SURFACES, write_plugin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

QUICK = ("logits", "ops", "quant")
"""Those whose tests take a second or two."""


def put(folder: Path, site: Path) -> None:
    """Install without pip: metadata for the entry point, and a path to the sources."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    requires = "".join(f"Requires-Dist: {line}\n" for line in project["dependencies"])
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n{requires}"
    )
    ((group, points),) = project["entry-points"].items()
    ((name, module),) = points.items()
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    (site / module).symlink_to(folder / "src" / module)


def run_tests(folders: Sequence[Path], site: Path) -> str:
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, folders)],
        cwd=site,
        env={**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def check(surfaces: Sequence[str], folder: Path) -> None:
    site, written = folder / "site", []
    for surface in surfaces:
        written.append(write_plugin(surface, f"my-{surface}".replace("_", "-"), folder / surface))
        put(written[-1], site)
    shown = run_tests([one / "tests" for one in written], site)
    assert "failed" not in shown and "error" not in shown, shown


def test_written_plugins_pass_their_tests(tmp_path: Path) -> None:
    check(QUICK, tmp_path)


@pytest.mark.accept
@pytest.mark.parametrize("surface", sorted(set(SURFACES) - set(QUICK)))
def test_every_other_written_plugin_passes_its_tests(tmp_path: Path, surface: str) -> None:
    check([surface], tmp_path)


@pytest.mark.accept
@pytest.mark.parametrize("surface", sorted(SURFACES))
def test_every_written_plugin_becomes_a_wheel(tmp_path: Path, surface: str) -> None:
    folder = write_plugin(surface, "mine", tmp_path / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-index"]
    target = ["--no-build-isolation", "--target", str(tmp_path / "site"), str(folder)]
    subprocess.run([*pip, *target], check=True)
    assert (tmp_path / "site" / f"pegboard_{surface}_mine" / "__init__.py").exists()


def test_there_is_a_template_for_every_surface() -> None:
    assert set(SURFACES) == set(API_LEVELS)


def test_the_command_writes_into_the_folder_that_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "there"
    start = "import sys; from pegboard.cli import main; sys.exit(main())"
    words = ["plugins", "new", "logits", "pace", "--into", str(folder)]
    first, second = (
        subprocess.run(
            [sys.executable, "-c", start, *words], capture_output=True, text=True, check=False
        )
        for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert "Warning" not in first.stderr
    assert f"pip install -e '{folder}[test]'" in first.stdout
    assert (folder / "src/pegboard_logits_pace/rows.py").read_text().count("class PaceRows") == 1
    assert second.returncode == 2
    assert "exists and is no empty folder" in second.stderr


@pytest.mark.parametrize("name", ["Pace", "two words", "1st", "a--b", "-a", "class", ""])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="NAME="):
        write_plugin("logits", name, tmp_path / "new")
    with pytest.raises(ConfigError, match="SURFACE='colour' is not allowed: one of alias, att"):
        write_plugin("colour", "pace", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("place", ["file/new", "n" * 300])
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: "):
        write_plugin("logits", "pace", tmp_path / place)


@pytest.mark.accept
def test_a_wheel_of_a_logits_processor_serves_the_command_line(tmp_path: Path) -> None:
    """Installed, it is used; taken away, its argument is refused."""
    model = write_tiny_model(tmp_path / "model", seed=3)
    folder, site = write_plugin("logits", "pace", tmp_path / "source"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(site), str(folder)], check=True)
    start = "import sys; from pegboard.cli import main; sys.exit(main())"
    words = ["run", str(model), "a text", "--raw", "-q", "--temperature", "0", "--max-tokens", "9"]
    options = ["--platform", "null", "--dtype", "float32", "--max-model-len", "64"]

    def answer(*more: str, path: str = str(site)) -> subprocess.CompletedProcess[bytes]:
        line = [sys.executable, "-c", start, *words, *options, *more]
        environ = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(line, env=environ, capture_output=True, check=False)

    plain, asked = answer(), answer("--extra-args", '{"pace": 40}')
    assert plain.returncode == asked.returncode == 0, plain.stderr + asked.stderr
    assert plain.stdout != asked.stdout
    named = answer("-o", "logits_processors=pace")
    assert named.returncode == 0, named.stderr
    gone = answer("--extra-args", '{"pace": 40}', path="")
    assert gone.returncode == 2
    assert b"no logits processor has this argument" in gone.stderr
