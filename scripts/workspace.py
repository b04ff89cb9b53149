"""Write, or check, what must agree among the members of the workspace.

    python scripts/workspace.py           write (`make sync`)
    python scripts/workspace.py --check   change nothing; list what differs, exit 1 if anything does

The version has one source, `core/src/pegboard/__about__.py`. Members are found by glob: a new
plugin needs no entry here. The folder of a member decides its names:

    plugin_models/llama      pegboard-model-llama      group pegboard.models
    plugins/attention-torch  pegboard-attention-torch  group pegboard.attention
    plugins/server-openai    pegboard-server-openai    group pegboard.plugins
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
MEMBER_GLOBS = ("core", "plugin_*/*", "plugins/*")
PYTHON_REQUIRES = ">=3.10"
LICENCE = "Apache-2.0"
FIRST_PARTY = Path("core/src/pegboard/plugins/first_party.json")
FAMILIES = {
    "plugin_connectors": ("connector", "pegboard.connectors"),
    "plugin_models": ("model", "pegboard.models"),
    "plugin_platforms": ("platform", "pegboard.platforms"),
    "plugin_quant": ("quant", "pegboard.quant"),
}
"""Parent folder of a plugin -> part of its distribution's name, entry-point group."""
ADOPTERS = "pegboard.adopters"
"""Entry-point group that says whose plugins a plugin runs."""


@dataclass(frozen=True)
class Member:
    """One distribution of the workspace; `folder` is relative to the root."""

    root: Path
    folder: Path

    @property
    def is_core(self) -> bool:
        """Whether this is the core and not a plugin."""
        return self.folder == Path("core")

    @property
    def distribution(self) -> str:
        """The name that the distribution must have."""
        if self.is_core:
            return "pegboard-core"
        kind = FAMILIES.get(self.folder.parts[0], ("", ""))[0]
        return "-".join(part for part in ("pegboard", kind, self.folder.name) if part)

    @property
    def module(self) -> str:
        """The package that the distribution must install."""
        return "pegboard" if self.is_core else self.distribution.replace("-", "_")

    @property
    def package(self) -> Path:
        """Folder of that package."""
        return self.root / self.folder / "src" / self.module

    @property
    def project_file(self) -> Path:
        """Its `pyproject.toml`."""
        return self.root / self.folder / "pyproject.toml"

    @property
    def data(self) -> dict[str, Any]:
        """Its parsed `pyproject.toml`."""
        data: dict[str, Any] = tomllib.loads(self.project_file.read_text())
        return data

    @property
    def entry_point(self) -> tuple[str, str]:
        """Group and name of the entry point that its place implies."""
        if self.folder.parts[0] in FAMILIES:
            return FAMILIES[self.folder.parts[0]][1], self.folder.name
        kind, dash, rest = self.folder.name.partition("-")
        if dash and kind == "attention":
            return "pegboard.attention", rest
        return "pegboard.plugins", self.folder.name

    def entry_points(self) -> dict[str, dict[str, str]]:
        """Declared entry points of Pegboard's own groups, but for those that say whose plugins a
        plugin runs."""
        groups = self.data["project"].get("entry-points", {})
        own = {group: names for group, names in groups.items() if group.startswith("pegboard.")}
        own.pop(ADOPTERS, None)
        return own

    def adopted(self) -> dict[str, str]:
        """Groups of other programs whose plugins it runs, each with the module that does."""
        found = self.data["project"].get("entry-points", {}).get(ADOPTERS, {})
        return {str(group): str(module) for group, module in found.items()}


def members(root: Path) -> list[Member]:
    """All members in a fixed order."""
    found = (path for pattern in MEMBER_GLOBS for path in root.glob(pattern))
    folders = sorted(path for path in found if (path / "pyproject.toml").is_file())
    return [Member(root, folder.relative_to(root)) for folder in folders]


def read_version(root: Path) -> str:
    """The one version."""
    text = (root / "core/src/pegboard/__about__.py").read_text()
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise SystemExit('core/src/pegboard/__about__.py has no line __version__ = "…"')
    return found.group(1)


def agreed(text: str, version: str) -> str:
    """A project file with the shared facts put in: version, Python, licence, pins among members."""
    facts = {"version": version, "requires-python": PYTHON_REQUIRES, "license": LICENCE}
    for key, value in facts.items():
        text = re.sub(rf'^{key} = ".*"$', f'{key} = "{value}"', text, count=1, flags=re.MULTILINE)
    return re.sub(r'"(pegboard(?:-[a-z0-9-]+)?)==[^"]*"', rf'"\1=={version}"', text)


def claims_of(module_name: str) -> dict[str, list[str]]:
    """What a plugin's hooks register: surface -> sorted names and claims."""
    import pluggy

    from pegboard.api.context import PluginContext
    from pegboard.api.hooks import HOOK_SURFACES, Hooks

    manager = pluggy.PluginManager("pegboard")
    manager.add_hookspecs(Hooks)
    manager.register(importlib.import_module(module_name))
    context = PluginContext(module_name, module_name, "", "front", "")
    found: dict[str, set[str]] = {}
    for hook, surface in HOOK_SURFACES.items():
        for answer in getattr(manager.hook, hook)(ctx=context):
            for descriptor in answer:
                found.setdefault(surface, set()).update((descriptor.name, *descriptor.claims()))
    return {surface: sorted(names) for surface, names in sorted(found.items())}


def first_party(root: Path) -> dict[str, Any]:
    """Content of the data file that lists the first-party plugins and what each provides.

    A plugin whose own dependencies are not installed here keeps the claims recorded last.
    """
    file = root / FIRST_PARTY
    recorded = json.loads(file.read_text()) if file.is_file() else {}
    listing: dict[str, Any] = {}
    for member in members(root):
        for group, names in member.entry_points().items():
            for name, module_name in names.items():
                sys.path.append(str(member.package.parent))
                try:
                    claims = claims_of(module_name)
                except ModuleNotFoundError:
                    claims = recorded.get(member.distribution, {}).get("claims", {})
                listing[member.distribution] = {"group": group, "name": name, "claims": claims}
    return listing


def wanted_files(root: Path) -> Iterator[tuple[Path, str]]:
    """Each file that the script writes, with its right content."""
    version = read_version(root)
    for path in (root / "pyproject.toml", *(member.project_file for member in members(root))):
        yield path, agreed(path.read_text(), version)
    yield root / FIRST_PARTY, json.dumps(first_party(root), indent=2, ensure_ascii=False) + "\n"


def shared_problems(where: str, project: dict[str, Any], version: str) -> Iterator[str]:
    """Facts that every project file must state."""
    facts = {"version": version, "requires-python": PYTHON_REQUIRES, "license": LICENCE}
    for key, value in facts.items():
        if project.get(key) != value:
            yield f"{where}: {key} is {project.get(key)!r}, must be {value!r}"


def naming_problems(member: Member) -> Iterator[str]:
    """Names that must follow from the folder, and the core pin."""
    where, project = str(member.folder), member.data["project"]
    if project["name"] != member.distribution:
        yield f"{where}: distribution is {project['name']!r}, must be {member.distribution!r}"
    if not (member.package / "__init__.py").is_file():
        yield f"{where}: src/{member.module}/__init__.py is missing"
    if member.is_core:
        return
    pin = f"pegboard-core=={project['version']}"
    if pin not in project.get("dependencies", []):
        yield f"{where}: dependencies must hold {pin!r}: its API levels are 0"
    if "pytest11" in project.get("entry-points", {}):
        return
    group, name = member.entry_point
    if member.entry_points() != {group: {name: member.module}}:
        yield f"{where}: needs exactly one entry point, [{group}] {name} = {member.module!r}"


def problems(root: Path) -> Iterator[str]:
    """Everything that is wrong and that writing cannot mend."""
    version = read_version(root)
    metapackage = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    yield from shared_problems("pyproject.toml", metapackage, version)
    names = {member.distribution for member in members(root)}
    extras = metapackage.get("optional-dependencies", {}).values()
    for requirement in [
        *metapackage["dependencies"],
        *(line for extra in extras for line in extra),
    ]:
        name = re.split(r"[^A-Za-z0-9-]", requirement)[0]
        if name.startswith("pegboard-") and name not in names:
            yield f"pyproject.toml: {requirement!r} names no member"
    for member in members(root):
        yield from shared_problems(str(member.folder), member.data["project"], version)
        yield from naming_problems(member)


def main() -> int:
    """Command line entry; returns the exit status."""
    parser = argparse.ArgumentParser(description="Keep the members of the workspace in agreement.")
    parser.add_argument("--check", action="store_true", help="change nothing, report differences")
    check = parser.parse_args().check
    found = []
    for path, text in wanted_files(ROOT):
        if path.is_file() and path.read_text() == text:
            continue
        if check:
            found.append(f"{path.relative_to(ROOT)}: out of date, run `make sync`")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    found += problems(ROOT)
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
