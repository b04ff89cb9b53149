"""What each value of the allowlist does, the same in a parent, a forked and a spawned child.

The variable is set as an operator sets it, in the environment of a fresh process; the children
inherit it and load plugins themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import pegboard
from pegboard.__about__ import __version__

SOURCE = str(Path(pegboard.__file__).parents[1])

PROGRAM = '''
import json
import multiprocessing
import os
import sys

from pegboard.errors import PegboardError
from pegboard.plugins import LoadPolicy, build_board


def outcome(folder):
    """What loading comes to in this process."""
    board = build_board(search_path=[folder])
    states = {state: [] for state in ("ready", "blocked", "failed", "incompatible")}
    for record in board.plugins:
        states[record.state].append(record.qualified)
    return {
        **states,
        "imported": sorted(name for name in sys.modules if name.startswith("zz_")),
        # A busy machine may make any import slow, which is told.
        "notices": [text for text in board.notices if "import and hooks took" not in text],
        "strict": told(lambda: build_board(search_path=[folder], policy=LoadPolicy(strict=True))),
        "platform": told(lambda: board.require_any("platform", wanted_by="the engine")),
        "family": told(lambda: board.require("model", "hf:LlamaForCausalLM", wanted_by="it")),
        "by path": board.allows_module("zz_parsers.parser:Parser"),
    }


def told(action):
    try:
        action()
    except PegboardError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def answer(pipe, folder):
    pipe.send(outcome(folder))


def in_child(kind, folder):
    context = multiprocessing.get_context(kind)
    ours, theirs = context.Pipe()
    child = context.Process(target=answer, args=(theirs, folder))
    child.start()
    found = ours.recv()
    child.join()
    return found


if __name__ == "__main__":
    table = []
    for value in json.loads(sys.argv[1]):
        os.environ.pop("VLLM_PLUGINS", None)
        if value is not None:
            os.environ["VLLM_PLUGINS"] = value
        children = [in_child(kind, sys.argv[2]) for kind in ("fork", "spawn")]
        # The parent comes last and forgets, so that a forked child inherits nothing of it.
        table.append([outcome(sys.argv[2]), *children])
        for name in [name for name in sys.modules if name.startswith("zz_")]:
            del sys.modules[name]
    print(json.dumps(table))
'''

MODULE = """
from pegboard.api.hooks import hookimpl
from pegboard.api.model import ModelFamily
from pegboard.api.platform import Platform

PEGBOARD_API = {{"model": 0, "platform": 0}}


@hookimpl
def pegboard_platforms():
    return [Platform(name, "a:b", "a:b") for name in {platforms}]


@hookimpl
def pegboard_model_families():
    architectures = {{"hf": ("LlamaForCausalLM",)}}
    return [ModelFamily(name, architectures, "a:b", "a:b", "a:b") for name in {families}]
"""

LLAMA, CPU = "models:llama", "platforms:cpu"
STRANGER, TWIN = "quant:zz-odd", "platforms:zz-twin"
ALL = {LLAMA, CPU, STRANGER, TWIN}
DISTRIBUTIONS = {
    "pegboard-model-llama": (LLAMA, "zz_llama", (), ("llama",)),
    "pegboard-platform-cpu": (CPU, "zz_cpu", ("cpu",), ()),
    "zz-Acme.Odd": (STRANGER, "zz_odd", (), ()),
    "pegboard-zz-twin": (TWIN, "zz_twin", ("twin",), ()),
}


class Row(NamedTuple):
    """A value and what it comes to."""

    value: str | None
    ready: set[str]
    notice: str = ""
    """Part of the one notice."""
    error: str = ""
    """Part of the error of strict mode, beside those that a notice becomes."""
    by_path: bool = False
    """A class of a distribution without plugins may be imported."""


TABLE = [
    Row(None, ALL, by_path=True),
    Row("", set()),
    Row("   ", set()),
    Row(" , ,", set()),
    Row(f"{LLAMA},", {LLAMA}),
    Row("  llama  ,  cpu ", {LLAMA, CPU}),
    Row("*", ALL, "'*' also admits pegboard-zz-twin, zz-acme-odd", by_path=True),
    Row("pegboard-*", {LLAMA, CPU, TWIN}, "'pegboard-*' also admits pegboard-zz-twin"),
    Row("pegboard-model-*,c?u", {LLAMA, CPU}),
    Row("models:*", {LLAMA}),
    Row("@first-party", {LLAMA, CPU}),
    Row("@first-party, zz-odd", {LLAMA, CPU, STRANGER}),
    Row("pegboard.platforms:cpu", {CPU}),
    Row("quant:llama", set(), "'quant:llama' matches no installed plugin", "matches no"),
    Row("Pegboard_Model.Llama", {LLAMA}),
    Row("ZZ_acme-odd", {STRANGER}),
    Row("zz.acme_odd,PEGBOARD--PLATFORM--CPU", {STRANGER, CPU}),
    Row("Zz.Parsers", set(), by_path=True),
    Row("llama,cpuu", {LLAMA}, "'cpuu' matches no installed plugin; did you mean 'cpu'?", "cpuu"),
    Row("llama", {LLAMA}),
    Row("cpu", {CPU}),
]


def write(folder: Path) -> None:
    """The distributions, and one that has a class and no plugin."""
    for name, (qualified, module, platforms, families) in DISTRIBUTIONS.items():
        group, _, entry = qualified.partition(":")
        lines = f"[pegboard.{group}]\n{entry} = {module}\n"
        write_metadata(folder, name, lines)
        source = MODULE.format(platforms=platforms, families=families)
        (folder / f"{module}.py").write_text(source)
    write_metadata(folder, "zz-parsers", "", ["zz_parsers/parser.py"])
    (folder / "zz_parsers").mkdir()
    (folder / "zz_parsers/parser.py").write_text("raise SystemExit")


def write_metadata(folder: Path, name: str, entry_points: str, files: Any = ()) -> None:
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    pin = f"Requires-Dist: pegboard-core=={__version__}"
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n{pin}\n")
    (info / "entry_points.txt").write_text(entry_points)
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, list[Any]]:
    """By value what it comes to in a parent, a forked child and a spawned child."""
    folder = tmp_path_factory.mktemp("site")
    write(folder)
    program = tmp_path_factory.mktemp("program") / "program.py"
    program.write_text(PROGRAM)
    values = [row.value for row in TABLE]
    done = subprocess.run(
        [sys.executable, str(program), json.dumps(values), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([SOURCE, str(folder)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(values, json.loads(done.stdout), strict=True))


def test_every_value_comes_to_the_same_in_every_process(outcomes: Any) -> None:
    assert len(outcomes) == len(TABLE) > 20
    for value, (parent, forked, spawned) in outcomes.items():
        assert parent == forked == spawned, repr(value)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: repr(row.value))
def test_a_value_admits_what_the_table_says(outcomes: Any, row: Row) -> None:
    found = outcomes[row.value][0]
    assert set(found["ready"]) == row.ready
    assert set(found["blocked"]) == ALL - row.ready
    assert not found["failed"] and not found["incompatible"]
    modules = {module for qualified, module, *_ in DISTRIBUTIONS.values() if qualified in row.ready}
    assert set(found["imported"]) == modules, "what is left out is never imported"
    assert len(found["notices"]) == bool(row.notice)
    assert row.notice in " ".join(found["notices"])
    assert found["by path"] is row.by_path
    assert bool(found["strict"]) is bool(row.error) and row.error in found["strict"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: repr(row.value))
def test_an_error_names_the_variable_its_value_and_the_missing_entry(
    outcomes: Any, row: Row
) -> None:
    found = outcomes[row.value][0]
    setting = f"VLLM_PLUGINS={row.value!r} leaves it out: add"
    for said, there, entry in (
        (found["platform"], row.ready & {CPU, TWIN}, "'cpu'"),
        (found["family"], LLAMA in row.ready, "'llama'"),
    ):
        assert bool(said) is not bool(there)
        if said:
            assert said.startswith("MissingPluginError") and f"{setting} {entry} to it" in said
