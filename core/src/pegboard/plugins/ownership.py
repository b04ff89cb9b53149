"""Which distribution a module belongs to, so that the allowlist can judge a class named by path.

Only such classes need this module, and it needs the metadata library: nothing imports it at
start-up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import unquote, urlparse

from importlib_metadata import Distribution, distributions

from pegboard.plugins.allowlist import Allowlist
from pegboard.plugins.discover import distribution_name
from pegboard.plugins.modules import find_module
from pegboard.plugins.record import CORE_DISTRIBUTION, Candidate

__all__ = ["module_allowed"]


def module_allowed(
    allowlist: Allowlist,
    path: str,
    candidates: Sequence[Candidate] = (),
    search_path: Sequence[str] | None = None,
) -> bool:
    """Whether a class named by module path may be imported.

    The path is ``pkg.module:Class`` or ``pkg.module.Class``. While a list is in force, the
    file must belong to the core or to an admitted distribution: one that an entry names, or one
    of whose plugins (among `candidates`) is admitted. Nothing is imported to find out.
    """
    if not allowlist.in_force:
        return True
    file = _module_file(path.partition(":")[0])
    if file is None:
        return False
    if Path(__file__).resolve().parent.parent in file.parents:
        return True
    admitted = {c.distribution for c in candidates if allowlist.admits(c)} | {CORE_DISTRIBUTION}
    for distribution in _installed(search_path):
        name = distribution_name(distribution)
        if name is None or not (name in admitted or allowlist.admits_distribution(name)):
            continue
        if _provides(distribution, file):
            return True
    return False


def _installed(search_path: Sequence[str] | None) -> Iterable[Distribution]:
    """Every distribution, with its list of files."""
    found = distributions() if search_path is None else distributions(path=list(search_path))
    return cast("Iterable[Distribution]", found)


def _module_file(dotted: str) -> Path | None:
    """File of the longest prefix of `dotted` that is a module: the rest are attributes."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        spec = find_module(".".join(parts[:length]))
        if spec is not None and spec.origin and spec.has_location:
            return Path(spec.origin).resolve()
    return None


def _provides(distribution: Distribution, file: Path) -> bool:
    """Whether `file` was installed by `distribution`, an editable install included."""
    folder = _editable_folder(distribution)
    if folder is not None and folder in file.parents:
        return True
    files = distribution.files
    if files is None:
        return _top_level_match(distribution, file)
    same_name = (entry for entry in files if entry.name == file.name)
    return any(Path(str(distribution.locate_file(entry))).resolve() == file for entry in same_name)


def _editable_folder(distribution: Distribution) -> Path | None:
    """The source folder of an editable install (PEP 610), or None."""
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
        if not origin.get("dir_info", {}).get("editable"):
            return None
        return Path(unquote(urlparse(origin["url"]).path)).resolve()
    except (ValueError, KeyError, AttributeError, OSError):
        return None


def _top_level_match(distribution: Distribution, file: Path) -> bool:
    """For metadata without a file list:

    the first folder or module name below the install root decides.
    """
    root = Path(str(distribution.locate_file(""))).resolve()
    if root not in file.parents:
        return False
    first = file.relative_to(root).parts[0].removesuffix(".py")
    listed = (distribution.read_text("top_level.txt") or "").split()
    named = {entry.value.partition(":")[0].split(".")[0] for entry in distribution.entry_points}
    return first in named.union(listed)
