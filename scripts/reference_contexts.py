"""The table of context objects in `docs/writing-a-plugin.md`, read from the contract files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from reference_code import Contract, contracts
from reference_text import cell, code

__all__ = ["GUIDE", "guide"]

GUIDE = Path("docs/writing-a-plugin.md")
BEGIN = "<!-- contexts: written by scripts/reference.py -->"
END = "<!-- /contexts -->"
HANDED_TO = {
    "PluginContext": "any hook, as `ctx`",
    "ConfigInput": "`config` of a `ModelFamily`",
    "BuildContext": "`build` of a `ModelFamily`",
    "QuantContext": "`quantizer` of a `QuantFormat`",
    "AttentionContext": "`kernel` of an `AttentionBackend`",
    "SchedulerHalfContext": "`scheduler` of a `KVConnector`",
    "WorkerHalfContext": "`worker` of a `KVConnector`",
    "PublisherSettings": "`open` of an `EventPublisher`",
    "SchedulerContext": "`build` of a `SchedulerClass`",
    "LogitsContext": "`build` of a `LogitsProcessor`",
    "LogitsRequest": "`check` of a `LogitsProcessor`",
    "ExecutorContext": "`build` of an `ExecutorClass`",
    "StatLoggerContext": "`open` of a `StatLogger`",
    "FrontContext": "`observe` of a `StatLogger`",
    "TokenizerContext": "`build` of a `TokenizerClass`",
    "TracerContext": "`open` of a `Tracer`",
    "EndpointContext": "`routes` of an `Endpoint`",
}
"""Every class of the contracts that brings a plugin its settings."""
SHARED = ("settings", "metrics")


def attributes(node: ast.ClassDef) -> Iterator[str]:
    """Names of public fields and properties."""
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign):
            name = ast.unparse(entry.target)
        elif isinstance(entry, ast.FunctionDef) and entry.decorator_list:
            name = entry.name
        else:
            continue
        if not name.startswith("_"):
            yield name


def contexts(found: dict[str, Contract]) -> dict[str, list[str]]:
    """Attributes of each class with settings, by its name."""
    classes = {name: node for one in found.values() for name, node in one.classes.items()}
    listed = {name: list(attributes(node)) for name, node in classes.items()}
    return {name: names for name, names in listed.items() if "settings" in names}


def table(root: Path) -> str:
    """One row for each context."""
    listed = contexts(contracts(root))
    if listed.keys() != HANDED_TO.keys():
        wrong = sorted(listed.keys() ^ HANDED_TO.keys())
        raise SystemExit(f"HANDED_TO of {Path(__file__).name} must say of {wrong} who gets it")
    rows = [
        "| context | what is called with it | attributes | of the plugin |",
        "|---|---|---|---|",
    ]
    for name, what in HANDED_TO.items():
        own = ", ".join(code(one) for one in listed[name] if one not in SHARED)
        of_plugin = ", ".join(code(one) for one in SHARED if one in listed[name])
        link = f"[`{name}`](reference-plugins.md#{name.lower()})"
        rows.append(f"| {' | '.join(map(cell, (link, what, own, of_plugin)))} |")
    return "\n".join(rows)


def guide(root: Path) -> str:
    """The whole page, its table brought up to date."""
    text = (root / GUIDE).read_text()
    between = re.compile(f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})", re.DOTALL)
    if not between.search(text):
        raise SystemExit(f"{GUIDE} has no lines {BEGIN!r} and {END!r}")
    made = f"\n{table(root)}\n\n"
    return between.sub(lambda _: made, text)
