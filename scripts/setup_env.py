"""Create `.venv` and install every member of the workspace into it, in editable form.

Runs under the machine's own Python (3.10 or newer, standard library only). It is quick when nothing
has changed: a stamp in the environment records which project files it was made from.

    python3 scripts/setup_env.py          what `make demo` needs
    python3 scripts/setup_env.py --dev    and the tools that the tests need

`TORCH_INDEX`, when set, is an additional package index that is used for torch alone.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMBER_GLOBS = ("core", "plugin_*/*", "plugins/*")
CPU_CONSTRAINTS = ROOT / "constraints" / "torch-cpu.txt"
BUILD_TOOLS = ("hatchling>=1.27", "editables>=0.5")
MINIMUM = (3, 10)


class SetupError(Exception):
    """The environment cannot be made; the message says what to do."""


def member_folders(root: Path) -> list[Path]:
    """Folders of all members, in a fixed order."""
    found = (path for pattern in MEMBER_GLOBS for path in root.glob(pattern))
    return sorted(path for path in found if (path / "pyproject.toml").is_file())


def fingerprint(root: Path, constraints: list[str]) -> str:
    """Digest of everything that decides what is installed."""
    digest = hashlib.sha256(" ".join([str(root), *constraints]).encode())
    files = [root / "pyproject.toml", CPU_CONSTRAINTS]
    files += [folder / "pyproject.toml" for folder in member_folders(root)]
    for path in files:
        digest.update(str(path.relative_to(root)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def torch_requirement(root: Path) -> str:
    """The torch requirement of the core, so that its range is written down once."""
    found = re.search(r'"(torch[<>=!~][^"]*)"', (root / "core" / "pyproject.toml").read_text())
    if found is None:
        raise SetupError("core/pyproject.toml names no torch requirement")
    return found.group(1)


def has_gpu() -> bool:
    """Whether an NVIDIA driver answers on this machine."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    answer = subprocess.run([tool, "-L"], capture_output=True, text=True, check=False)
    return answer.returncode == 0 and "GPU" in answer.stdout


class Environment:
    """The virtual environment of the workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"
        self.stamp = folder / "pegboard-setup.json"

    def is_current(self, digest: str, dev: bool) -> bool:
        """Whether a former run installed the same things, the tools included if they are wanted."""
        try:
            stamp = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return False
        same = stamp.get("digest") == digest and self.python.exists()
        return bool(same and (stamp.get("dev") or not dev))

    def finish(self, digest: str, dev: bool) -> None:
        """Record what was installed."""
        self.stamp.write_text(json.dumps({"digest": digest, "dev": dev}) + "\n")

    def create(self) -> None:
        """Create the environment unless it works already; pip comes from wherever it is found."""
        if self.python.exists() and self._has_pip():
            return
        try:
            self._build(with_pip=True)
        except subprocess.CalledProcessError:
            self._build(with_pip=False)
            self._borrow_pip()

    def _build(self, with_pip: bool) -> None:
        builder = venv.EnvBuilder(symlinks=True, with_pip=with_pip, clear=self.folder.exists())
        builder.create(self.folder)

    def _has_pip(self) -> bool:
        command = [str(self.python), "-m", "pip", "--version"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def _borrow_pip(self) -> None:
        """Install pip with the machine's pip: some systems package ensurepip apart."""
        spec = importlib.util.find_spec("pip")
        if spec is None or spec.origin is None:
            raise SetupError("this Python has neither ensurepip nor pip; install one of them")
        host_pip = str(Path(spec.origin).parent)
        run([str(self.python), host_pip, "install", "--ignore-installed", "pip"])

    def pip(self, *arguments: str) -> None:
        """Run ``pip install`` inside the environment.

        Nothing is compiled ahead: of torch's and transformers' many modules few are ever imported.
        """
        run([str(self.python), "-m", "pip", "install", "--no-compile", *arguments])


def run(command: list[str]) -> None:
    """Run a command and turn its failure into one error."""
    outcome = subprocess.run(command, cwd=ROOT, check=False)
    if outcome.returncode:
        raise SetupError(f"exit status {outcome.returncode} from: {' '.join(command)}")


def say(message: str) -> None:
    """Report progress on stderr."""
    print(f"setup: {message}", file=sys.stderr, flush=True)


def install_torch(env: Environment, constraints: list[str], index: str) -> None:
    """Install torch alone first, so that its index and constraint touch nothing else."""
    if constraints and not index:
        say(
            "no GPU found; set TORCH_INDEX to PyTorch's CPU wheel index if pip picks a larger build"
        )
    extra = ["--extra-index-url", index] if index else []
    env.pip(*constraints, *extra, torch_requirement(ROOT))


def install_members(env: Environment, constraints: list[str], dev: bool) -> None:
    """Install all members and the metapackage in one call of pip."""
    arguments = ["--quiet", "--no-build-isolation", *constraints]
    for folder in member_folders(ROOT):
        arguments += ["-e", f"./{folder.relative_to(ROOT)}"]
    env.pip(*arguments, "-e", ".[dev]" if dev else ".")


def set_up(dev: bool, index: str) -> None:
    """Bring the environment to the state that the project files describe."""
    env = Environment(ROOT / ".venv")
    constraints = [] if has_gpu() else ["-c", str(CPU_CONSTRAINTS.relative_to(ROOT))]
    digest = fingerprint(ROOT, constraints)
    if env.is_current(digest, dev):
        return
    say(f"creating {env.folder}")
    env.create()
    env.pip("--quiet", "--upgrade", "pip")
    say("installing torch (a large download the first time)")
    install_torch(env, constraints, index)
    say(f"installing {len(member_folders(ROOT))} members")
    env.pip("--quiet", *BUILD_TOOLS)
    install_members(env, constraints, dev)
    env.finish(digest, dev)


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Set up the virtual environment.")
    parser.add_argument("--dev", action="store_true", help="also install the test tools")
    arguments = parser.parse_args()
    if sys.version_info < MINIMUM:
        say(f"Python 3.10 or newer is needed, this is {sys.version.split()[0]}; set PYTHON=…")
        return 1
    try:
        set_up(arguments.dev, os.environ.get("TORCH_INDEX", "").strip())
    except SetupError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
