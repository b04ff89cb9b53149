"""Where plugins are loaded, and that other processes load what the first one did."""

from __future__ import annotations

import importlib
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from pegboard.errors import ConfigError, PluginError
from pegboard.plugins import LoadPolicy, PluginPlan

PLACED = """
import attrs
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0}
PEGBOARD_PROCESSES = ("worker", "engine")
PEGBOARD_ORDER = {"before": ["alpha"]}


@hookimpl
def pegboard_settings():
    return attrs.make_class("Settings", {"depth": attrs.field(type=int, default=1)})


@hookimpl
def pegboard_platforms(ctx):
    name = f"{'+'.join(ctx.roles)}-{ctx.settings.depth}"
    return [Platform(name=name, probe="a:b", runtime="a:b")]
"""


CHILD = """
from pegboard.errors import PegboardError
from pegboard.plugins import load_plugins


def load(plan):
    try:
        board = load_plugins(plan=plan, role="worker", environ={"VLLM_PLUGINS": "nothing"})
    except PegboardError as error:
        return error
    return (
        [platform.name for platform in board.registry("platform")],
        {record.id: record.state for record in board.plugins},
        board.plan,
    )
"""


def in_a_child(kind: str, folder: Path, plan: PluginPlan) -> Any:
    """What `load_plugins` makes of a plan in another process, or its error."""
    (folder / "the_child.py").write_text(CHILD)
    load = importlib.import_module("the_child").load
    with multiprocessing.get_context(kind).Pool(1) as pool:
        return pool.apply_async(load, (plan,)).get(timeout=60)


def test_a_plugin_is_imported_only_where_it_is_for(site: Any) -> None:
    module = site.add_source(PLACED)
    (record,) = site.load(role="front").plugins
    assert record.state == "unused" and module not in sys.modules
    assert "it is for engine or worker processes, this one is front" in record.reason
    assert record.processes == ("engine", "worker")
    (record,) = site.load(role="worker").plugins
    assert record.state == "ready" and record.registered[0].name == "worker-1"


def test_an_engine_in_one_process_is_everything(site: Any) -> None:
    site.add_source(PLACED)
    assert site.load().registry("platform").names() == ("front+engine+worker-1",)
    both = site.load(role=("engine", "front"))
    assert both.registry("platform").names() == ("front+engine-1",)


@pytest.mark.parametrize("value", ["'worker'", "()", "('workers',)", "{'worker'}", "tuple('a')"])
def test_malformed_processes_are_told(site: Any, value: str) -> None:
    site.add_source(PLACED.replace('("worker", "engine")', value))
    (record,) = site.load().plugins
    assert record.state == "failed" and "PEGBOARD_PROCESSES" in record.reason
    assert "front, engine, worker" in record.reason


def test_a_plan_is_plain_data(site: Any) -> None:
    site.add_source(PLACED)
    site.add_platform("alpha", "platforms:alpha")
    site.add_platform("blocked", "platforms:blocked")
    plan = site.load("odd,alpha", policy=LoadPolicy(plugin_config={"odd": {"depth": 4}})).plan
    assert [(p.id, p.version, p.state) for p in plan.plugins if p.loads] == [
        ("odd", "1.0", "ready"),
        ("alpha", "1.0", "ready"),
    ]
    assert plan.allowlist == "odd,alpha" and plan.settings == {"odd": {"depth": 4}}
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_a_child_loads_what_its_parent_did(site: Any, kind: str) -> None:
    """In its order, with its settings and its allowlist; what is for workers is loaded there."""
    site.add_source(PLACED)
    for name in ("alpha", "blocked"):
        site.add_platform(name, f"platforms:{name}")
    site.add("broken", {"platforms:broken": "broken"}, files={"broken.py": "PEGBOARD_API = 1"})
    board = site.load(
        "odd,alpha,broken",
        role=("front",),
        policy=LoadPolicy(plugin_config={"odd": {"depth": 4}}),
    )
    assert board.registry("platform").names() == ("alpha",)
    names, states, plan = in_a_child(kind, site.folder, board.plan)
    assert names == ["worker-4", "alpha"]
    assert states == {
        "odd": "ready",
        "alpha": "ready",
        "blocked": "blocked",
        "broken": "incompatible",
    }
    assert plan.settings == {"odd": {"depth": 4}}


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_a_child_refuses_what_its_parent_did_not_load(site: Any, kind: str) -> None:
    for name in ("alpha", "beta", "gamma"):
        site.add_platform(name, f"platforms:{name}")
    plan = site.load().plan
    _remove(site.folder, "alpha")
    metadata = site.folder / "beta-1.0.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.0", "Version: 1.1"))
    entry = site.folder / "gamma-1.0.dist-info" / "entry_points.txt"
    entry.write_text(entry.read_text().replace("gamma_module", "alpha_module"))
    site.add_platform("delta", "platforms:delta")
    error = in_a_child(kind, site.folder, plan)
    assert type(error) is PluginError
    for text in (
        "platforms:alpha of alpha 1.0 is not found here",
        "platforms:beta of beta 1.0 has the version 1.1 here",
        "platforms:delta of delta 1.0 is here and not in the plan",
        "gamma 1.0 is the module alpha_module here, not gamma_module",
    ):
        assert text in str(error)


def test_a_plugin_that_loads_in_the_parent_only_is_named(site: Any) -> None:
    source = "import os, sys\nif 'fail_here' in sys.modules: raise OSError('no library')\n"
    module = site.add_source(source + PLACED)
    plan = site.load().plan
    del sys.modules[module]
    sys.modules["fail_here"] = sys
    try:
        with pytest.raises(PluginError, match=r"odd 1\.0 is failed here: OSError: no library"):
            site.load(plan=plan)
    finally:
        del sys.modules["fail_here"]


def test_what_did_not_load_in_the_parent_is_not_tried_again(site: Any) -> None:
    module = site.add_source("raise OSError('no library')\n" + PLACED)
    plan = site.load().plan
    (site.folder / f"{module}.py").write_text(PLACED)
    board = site.load(plan=plan)
    assert module not in sys.modules
    assert board.plugins[0].state == "failed" and "process that started" in board.plugins[0].reason


def test_what_is_for_workers_only_may_fail_there(site: Any) -> None:
    site.add_source("raise OSError('no library')\n" + PLACED)
    plan = site.load(role="front").plan
    (record,) = site.load(role="worker", plan=plan).plugins
    assert record.state == "failed" and "no library" in record.reason


def test_another_core_is_a_difference(site: Any) -> None:
    plan = attrs.evolve(site.load().plan, core="9.9")
    with pytest.raises(PluginError, match=r"the core is .*, not 9\.9"):
        site.load(plan=plan)


def test_the_digest_is_that_of_what_loads(site: Any) -> None:
    for name in ("alpha", "beta"):
        site.add_platform(name, f"platforms:{name}")
    site.add_source(PLACED)
    plan = site.load().plan
    deeper = site.load(policy=LoadPolicy(plugin_config={"odd": {"depth": 4}})).plan
    assert plan.digest() == site.load("alpha,beta,odd").plan.digest()
    assert len({plan.digest(), deeper.digest(), plan.digest(["alpha"]), plan.digest(["beta"])}) == 4
    assert plan.digest(["alpha"]) == deeper.digest(["alpha"])
    backwards = attrs.evolve(plan, plugins=plan.plugins[::-1])
    assert backwards.digest() == plan.digest()
    newer = attrs.evolve(plan, plugins=tuple(p._replace(version="2") for p in plan.plugins))
    assert newer.digest(["alpha"]) != plan.digest(["alpha"])


def test_settings_are_checked_where_the_plugin_loads(site: Any) -> None:
    site.add_source(PLACED)
    policy = LoadPolicy(plugin_config={"odd": {"depth": "deep"}})
    plan = site.load(role="front", policy=policy).plan
    with pytest.raises(ConfigError, match="depth='deep' is not allowed: an integer"):
        site.load(role="worker", plan=plan)


def _remove(folder: Path, name: str) -> None:
    for file in (folder / f"{name}-1.0.dist-info").iterdir():
        file.unlink()
