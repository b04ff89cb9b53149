"""Small distributions on disk, as pip would have installed them, for the time of a test."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pegboard.__about__ import __version__

__all__ = ["installed", "write_distribution"]

GROUP = "pegboard.plugins"


def write_distribution(
    folder: Path, name: str, module: str, source: str, group: str = GROUP
) -> None:
    """Put version 1.0 of a distribution into `folder`: one module of this `source`, and an entry
    point called `name` that names it."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / f"{module}.py").write_text(source)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0"]
    lines.append(f"Requires-Dist: pegboard-core=={__version__}")
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}\n")
    (info / "RECORD").write_text(f"{module}.py,,\n")


@contextmanager
def installed(folder: Path, name: str, module: str, source: str) -> Iterator[None]:
    """A context in which the distribution of `write_distribution` is found, by this process and by
    those that an engine starts."""
    write_distribution(folder, name, module, source)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop(module, None)
