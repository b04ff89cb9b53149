"""Find a Chromium that tests can drive, installing one if there is none; print its path.

Looked for are the program that `PEGBOARD_TEST_BROWSER` names, then Chromium and Chrome by their
usual names. Without any, apt-get installs Chromium where it may (Debian and kin, as root), else
Playwright its own build.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VARIABLE = "PEGBOARD_TEST_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
PACKAGES = ("chromium", "fonts-dejavu-core")


class BrowserError(Exception):
    """There is no browser; the message says why."""


def find() -> Path | None:
    """A browser that is there already. Raises `BrowserError` if the variable names none."""
    wanted = os.environ.get(VARIABLE)
    for name in (wanted,) if wanted else NAMES:
        path = shutil.which(name)
        if path is not None:
            return Path(path)
    if wanted:
        raise BrowserError(f"{VARIABLE}={wanted} is no program")
    return None


def by_apt() -> str:
    """Install with apt-get; why not, or nothing."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "apt-get is not to be used (no Debian, or not root)"
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
    # A stale list of packages fails, a fresh one costs time: it is fetched only if it must be.
    for command in (install, ["apt-get", "update", "-q"], install):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if command is install and done.returncode == 0:
            return ""
    return f"apt-get: {done.stderr.strip()[-300:]}"


def by_playwright() -> Path:
    """Let Playwright download its build. Raises `BrowserError`."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise BrowserError("Playwright is not installed") from None
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BrowserError(f"playwright install: {done.stderr.strip()[-300:]}")
    with sync_playwright() as playwright:
        return Path(playwright.chromium.executable_path)


def fetch() -> Path:
    """The path of a browser. Raises `BrowserError` with all that was tried."""
    found = find()
    if found is not None:
        return found
    print("installing Chromium", file=sys.stderr, flush=True)
    reason = by_apt()
    found = find()
    if found is not None:
        return found
    try:
        return by_playwright()
    except BrowserError as error:
        raise BrowserError(f"no browser: {reason}; {error}; or set {VARIABLE}") from None


def main() -> int:
    """Command line entry; prints the path and returns the exit status."""
    try:
        print(fetch())
    except BrowserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
