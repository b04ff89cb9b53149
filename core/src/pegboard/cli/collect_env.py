"""``pegboard collect-env``: what a bug report should have. It imports torch, unlike its neighbours.

Values of variables that may hold a secret are not shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pegboard.__about__ import __version__
from pegboard.cli.dispatch import ArgvCommand
from pegboard.cli.parser import Parser
from pegboard.errors import PegboardError
from pegboard.plugins import VARIABLE, Board, LoadPolicy, build_board

__all__ = ["app", "shown_variables"]

_LIBRARIES = ("torch", "triton", "numpy", "tokenizers", "safetensors", "pluggy")
_PREFIXES = (
    *("PEGBOARD_", "VLLM_", "HF_", "CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "TRITON_"),
    *("OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "PYTHON"),
)
_NAMES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "XDG_CACHE_HOME")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|AUTH", re.IGNORECASE)
_USER = re.compile(r"(?<=://)[^/@\s]+@")
_MASK = "***"


def _main(words: Sequence[str]) -> int:
    parser = Parser(
        prog="pegboard collect-env",
        description="Print what a bug report should have: versions, platforms, plugins, variables.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--no-plugins-except",
        metavar="LIST",
        help=f"a second allowlist beside {VARIABLE}, of the same form",
    )
    try:
        options = parser.parse(words)
    except SystemExit as done:
        return int(done.code or 0)
    found = collect(build_board(policy=LoadPolicy(only=options.no_plugins_except)), os.environ)
    if options.json:
        import json

        print(json.dumps(found, indent=2, default=str))
    else:
        print("\n".join(_lines(found)))
    return 0


app = ArgvCommand(_main)


def collect(board: Board, environ: Mapping[str, str]) -> dict[str, Any]:
    """Everything, as plain values."""
    also = board.allowlist.also
    return {
        "versions": _versions(),
        "system": _system(),
        "allowlist": {"variable": VARIABLE, "value": board.allowlist.value},
        "no_plugins_except": None if also is None else also.value,
        "platforms": _platforms(board),
        "plugins": board.report(),
        "ops": _ops(board),
        "notices": list(board.notices),
        "environment": shown_variables(environ),
    }


def shown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter, by name; what may be a secret is masked."""
    shown = {}
    for name in sorted(environ):
        if name.startswith(_PREFIXES) or name in _NAMES:
            value = _USER.sub(f"{_MASK}@", environ[name])
            shown[name] = _MASK if _SECRET.search(name) else value
    return shown


def _versions() -> dict[str, str]:
    versions = {"pegboard-core": __version__, "python": sys.version.split()[0]}
    for name in _LIBRARIES:
        if importlib.util.find_spec(name) is None:
            versions[name] = "not installed"
            continue
        try:
            versions[name] = str(getattr(importlib.import_module(name), "__version__", "unknown"))
        except Exception as error:  # a broken library is what the report is about
            versions[name] = f"cannot be imported: {type(error).__name__}: {error}"
    torch = sys.modules.get("torch")
    if torch is not None:
        versions["CUDA of torch"] = str(torch.version.cuda or "none")
    return versions


def _system() -> dict[str, str]:
    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "python executable": sys.executable,
        "python build": platform.python_build()[0],
    }


def _platforms(board: Board) -> list[dict[str, Any]]:
    """Every candidate with what its probe said, and which would be taken."""
    from pegboard.runner.select import choose_platform, probe_platform

    registry = board.registry("platform")
    try:
        chosen = choose_platform(registry).name if len(registry) else ""
    except PegboardError:  # none is usable, or several are: the answers say so
        chosen = ""
    rows = []
    for entry in registry.entries():
        candidate, answer = entry.descriptor, probe_platform(entry.descriptor)
        rows.append(
            {
                "name": candidate.name,
                "provider": str(entry.provenance),
                "priority": candidate.priority,
                "usable": answer.present,
                "reason": answer.reason,
                "chosen": candidate.name == chosen,
                "device": _device_facts(candidate) if answer.present else None,
            }
        )
    return rows


def _device_facts(candidate: Any) -> Any:
    try:
        return candidate.runtime.load()(0).facts()
    except Exception as error:
        return f"cannot be opened: {type(error).__name__}: {error}"


def _ops(board: Board) -> dict[str, list[dict[str, Any]]]:
    """By op, the versions that plugins offer beside the plain one."""
    found: dict[str, list[dict[str, Any]]] = {}
    for entry in board.registry("ops").entries():
        version = entry.descriptor
        found.setdefault(version.op, []).append(
            {
                "name": version.name,
                "provider": str(entry.provenance),
                "platforms": list(version.platforms),
                "dtypes": list(version.dtypes),
                "priority": version.priority,
            }
        )
    return dict(sorted(found.items()))


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The same for people."""
    for title in ("versions", "system"):
        yield from _section(title, (f"{k}: {v}" for k, v in found[title].items()))
    listed = found["allowlist"]["value"]
    rules = [f"{VARIABLE}={listed!r}" if listed is not None else f"{VARIABLE} is not set"]
    if found["no_plugins_except"] is not None:
        rules.append(f"no_plugins_except={found['no_plugins_except']!r}")
    yield from _section("allowlist", rules)
    yield from _section("platforms", map(_platform_line, found["platforms"]))
    yield from _section("plugins", map(_plugin_line, found["plugins"]))
    yield from _section("op versions beside the plain ones", _op_lines(found["ops"]))
    yield from _section("notices", found["notices"])
    yield from _section("environment", (f"{k}={v}" for k, v in found["environment"].items()))


def _section(title: str, lines: Any) -> Iterator[str]:
    shown = [f"  {line}" for line in lines] or ["  none"]
    yield from (f"{title}:", *shown)


def _platform_line(row: Mapping[str, Any]) -> str:
    usable = "usable" if row["usable"] else "not usable"
    chosen = ", taken by default" if row["chosen"] else ""
    device = f"; {row['device']}" if row["device"] is not None else ""
    return (
        f"{row['name']} ({row['provider']}, priority {row['priority']}): {usable}{chosen}, "
        f"{row['reason']}{device}"
    )


def _plugin_line(row: Mapping[str, Any]) -> str:
    group = row["group"].rpartition(".")[2]
    name = f"{group}:{row['id']}" if group else row["id"]
    why = f", {row['reason']}" if row["reason"] else ""
    return f"{name} of {row['distribution']} {row['installed']}: {row['state']}{why}"


def _op_lines(ops: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    for op, versions in ops.items():
        told = (f"{v['name']} ({v['provider']}, priority {v['priority']})" for v in versions)
        yield f"{op}: {', '.join(told)}"
