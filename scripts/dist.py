"""Build the wheels and sdists of all members into `dist/`, and check them (`make dist`).

    python scripts/dist.py             all of them
    python scripts/dist.py --out DIR   into another folder

Each wheel is built from its sdist, so that the sdist is known to be whole. The same sources give
the same bytes: times are those of `SOURCE_DATE_EPOCH`, which is the last commit's where it is not
set. `SHA256SUMS` lists what was built. READMEs are rendered if twine is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dist_checks import sdist_faults, wheel_faults
from workspace import ROOT, members, read_version

SUMS = "SHA256SUMS"


class DistError(Exception):
    """Something was not built, or is not as it must be."""


def say(message: str) -> None:
    """Report progress on stderr."""
    print(f"dist: {message}", file=sys.stderr, flush=True)


def projects(root: Path) -> dict[str, Path]:
    """Distribution -> folder, the metapackage included."""
    return {"pegboard": root, **{m.distribution: m.root / m.folder for m in members(root)}}


def source_date(root: Path) -> str:
    """Seconds since 1970 that files in archives are dated with, or nothing to leave it to the
    builder, whose date is fixed too."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if given:
        return given
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return answer.stdout.strip()


def project_files(root: Path) -> set[Path] | None:
    """Files that belong to the project, relative to `root`; None outside a git checkout."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "-z"]
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if answer.returncode else {Path(name) for name in answer.stdout.split("\0") if name}


def build(folder: Path, out: Path, environ: Mapping[str, str]) -> None:
    """One sdist, and the wheel that it makes. Raises `DistError` with the builder's words."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"{folder} was not built:\n{done.stdout}{done.stderr}")


def build_all(root: Path, out: Path) -> dict[str, tuple[Path, Path]]:
    """Distribution -> its wheel and its sdist, in `out`, whose former content is removed. They are
    made elsewhere first: a failure leaves `out` as it was."""
    environ = dict(os.environ)
    date = source_date(root)
    if date:
        environ["SOURCE_DATE_EPOCH"] = date
    with tempfile.TemporaryDirectory(prefix="dist-") as scratch:
        for name, folder in projects(root).items():
            say(f"building {name}")
            build(folder, Path(scratch), environ)
        if out.is_dir():
            shutil.rmtree(out)
        out.mkdir(parents=True)
        for path in sorted(Path(scratch).iterdir()):
            shutil.copy2(path, out / path.name)
    return {name: built_files(out, name, read_version(root)) for name in projects(root)}


def built_files(out: Path, distribution: str, version: str) -> tuple[Path, Path]:
    """Wheel and sdist of one distribution. Raises `DistError` if there is none."""
    stem = f"{distribution.replace('-', '_')}-{version}"
    wheel, sdist = out / f"{stem}-py3-none-any.whl", out / f"{stem}.tar.gz"
    for path in (wheel, sdist):
        if not path.is_file():
            raise DistError(f"{path.name} was not built")
    return wheel, sdist


def faults(root: Path, built: Mapping[str, tuple[Path, Path]]) -> Iterator[str]:
    """All that is wrong with what was built."""
    version, known = read_version(root), project_files(root)
    for name, folder in projects(root).items():
        wheel, sdist = built[name]
        yield from wheel_faults(wheel, name, version)
        own = None if known is None else {p for p in known if (root / p).is_relative_to(folder)}
        files = None if own is None else {(root / p).relative_to(folder) for p in own}
        yield from sdist_faults(sdist, files)
    yield from readme_faults([path for pair in built.values() for path in pair])


def readme_faults(paths: list[Path]) -> Iterator[str]:
    """What twine says of the long descriptions, if it is there."""
    if importlib.util.find_spec("twine") is None:
        say("twine is not installed: the READMEs are not rendered")
        return
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"twine check: {done.stdout}{done.stderr}"


def write_sums(out: Path) -> None:
    """Digests of all files, as ``sha256sum --check`` reads them."""
    paths = sorted(path for path in out.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths]
    (out / SUMS).write_text("".join(lines))


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Build and check all distributions.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder, emptied before")
    out = parser.parse_args().out.absolute()
    try:
        built = build_all(ROOT, out)
    except DistError as error:
        say(str(error))
        return 1
    write_sums(out)
    found = list(faults(ROOT, built))
    print("\n".join(found), end="\n" if found else "")
    say(f"{2 * len(built)} files in {out}, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
