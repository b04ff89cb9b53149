"""What the guide for authors and the page for operators show works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import attrs
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from pegboard.api.endpoint import Endpoint
from pegboard.api.logits import LogitsProcessor
from pegboard.api.metrics import MetricSet, PluginMetrics
from pegboard_metrics_prometheus.plugin_figures import PluginFigures
from pegboard_server_openai.state import ServerState
from pegboard_testkit.endpoint_kit import EndpointKit
from pegboard_testkit.logits_kit import LogitsKit


def example(page: Path, name: str) -> str:
    """The one Python block that defines `name`."""
    found = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    start = re.compile(rf"^(class|def) {name}\b", re.MULTILINE)
    (code,) = [block for block in found if start.search(block)]
    return code


def test_the_logits_processor_of_the_guide_passes_the_kit(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("later_of_the_guide")
    exec(example(repo_root / "docs/writing-a-plugin.md", "LaterRows"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Later(LogitsKit):
        processor = LogitsProcessor(
            name="later", build=f"{module.__name__}:LaterRows", arguments=("later",)
        )
        allowed = ({"later": 9}, {"later": 30})
        settings = types.SimpleNamespace(later=4)

    for name in (name for name in dir(Later) if name.startswith("test_")):
        more = (tmp_path,) if "engine" in name else ()
        if "likeliest" not in name:
            getattr(Later(), name)(*more)


def test_the_endpoint_of_the_guide_passes_the_kit(
    repo_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("greeting_of_the_guide")
    exec(example(repo_root / "docs/writing-a-plugin.md", "routes"), vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Greeting(EndpointKit):
        endpoint = Endpoint("greeting", f"{module.__name__}:routes")
        settings = types.SimpleNamespace(word="Hello")

    for name in (name for name in dir(Greeting) if name.startswith("test_")):
        getattr(Greeting(), name)()
    plain = Greeting()._routes()[0].handler
    assert plain(types.SimpleNamespace(path_params={"name": "Ada"})) == {"text": "Hello, Ada"}


def test_what_the_guide_says_of_the_server_is_there(repo_root: Path) -> None:
    guide = (repo_root / "docs/writing-a-plugin.md").read_text()
    table = guide.partition("| of `ctx.server` |")[2].partition("\n\n")[0]
    shown = re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)
    assert len(shown) > 5
    fields = {field.name for field in attrs.fields(ServerState)}
    for name in shown:
        word, bracket, _ = name.partition("(")
        assert word in fields or hasattr(ServerState, word), name
        assert callable(getattr(ServerState, word, None)) == bool(bracket), name


def test_a_run_without_one_plugin_is_as_the_manual_says(repo_root: Path) -> None:
    page = (repo_root / "docs/operating.md").read_text()
    (line,) = re.findall(r"^\$ (export VLLM_PLUGINS=.*)$", page, re.MULTILINE)
    assert "'maple'" in line
    script = line.replace("'maple'", "'stats-log'") + "\npegboard plugins list --json"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    outcome = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    states = {row["id"]: row["state"] for row in json.loads(outcome.stdout)["plugins"]}
    assert {name for name, state in states.items() if state == "blocked"} == {"stats-log"}
    assert len(states) > 10


def test_a_counter_is_exposed_under_the_name_that_the_guide_says(repo_root: Path) -> None:
    guide = (repo_root / "docs/writing-a-plugin.md").read_text()
    metrics = MetricSet()
    PluginMetrics("cellar", metrics).counter("hits", "Blocks found").add(3)
    PluginMetrics("cellar", metrics).counter("found_total", "Others").add(2)
    registry = CollectorRegistry()
    registry.register(PluginFigures({"front": metrics.readings()}))
    lines = generate_latest(registry).decode()
    assert "`pegboard_plugin_cellar_hits_total`" in guide
    assert re.search(r"^pegboard_plugin_cellar_hits_total\{.*\} 3\.0$", lines, re.MULTILINE), lines
    assert re.search(r"^pegboard_plugin_cellar_found_total\{.*\} 2\.0$", lines, re.MULTILINE), lines
