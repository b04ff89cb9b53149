"""The order of loading: what plugins ask for, and cycles."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest

from pegboard.plugins.order import load_order

ORDERED = """
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {{"platform": 0}}
PEGBOARD_ORDER = {order}


@hookimpl
def pegboard_platforms(ctx):
    return [Platform(name=ctx.plugin_id, probe="a:b", runtime="a:b")]
"""


def add(site: Any, name: str, order: object) -> None:
    source = ORDERED.format(order=order)
    site.add(name, {f"platforms:{name}": f"{name}_module"}, files={f"{name}_module.py": source})


def loaded(board: Any) -> list[str]:
    return [platform.name for platform in board.registry("platform")]


def test_plugins_are_loaded_before_and_after_those_they_name(site: Any) -> None:
    add(site, "alpha", {"after": ["zeta"]})
    add(site, "beta", {})
    add(site, "omega", {"before": ["beta", "not-installed"]})
    add(site, "zeta", {"after": ("not-installed",)})
    board = site.load()
    assert loaded(board) == ["omega", "beta", "zeta", "alpha"]
    assert [r.id for r in board.plugins] == ["alpha", "beta", "omega", "zeta"]
    assert [p.id for p in board.plan.plugins] == ["omega", "beta", "zeta", "alpha"]


def test_those_on_a_cycle_fail_and_the_others_load(site: Any) -> None:
    add(site, "alpha", {"before": ["beta"]})
    add(site, "beta", {"before": ["gamma"]})
    add(site, "gamma", {"before": ["alpha"]})
    add(site, "delta", {"before": ["beta"], "after": ["epsilon"]})
    add(site, "epsilon", {})
    add(site, "narcissus", {"after": ["narcissus"]})
    board = site.load()
    assert loaded(board) == ["epsilon", "delta"]
    reasons = {r.id: r.reason for r in board.plugins if r.state == "failed"}
    assert reasons.keys() == {"alpha", "beta", "gamma", "narcissus"}
    assert "cycle: beta before gamma before alpha before beta" in reasons["beta"]
    assert "cycle: narcissus before narcissus" in reasons["narcissus"]


def test_a_plugin_that_is_left_out_takes_its_wishes_along(site: Any) -> None:
    add(site, "alpha", {"before": ["beta"]})
    add(site, "beta", {"before": ["alpha"]})
    assert loaded(site.load("alpha")) == ["alpha"]


@pytest.mark.parametrize(
    "order", [["alpha"], {"befor": []}, {"before": "alpha"}, {"before": [1]}, {"after": [""]}]
)
def test_a_malformed_order_is_told(site: Any, order: object) -> None:
    add(site, "odd", order)
    (record,) = site.load().plugins
    assert record.state == "failed"
    assert "PEGBOARD_ORDER in module 'odd_module' must be a literal dict" in record.reason
    assert "before, after" in record.reason


def test_every_wish_is_kept_whatever_the_order_of_the_ids() -> None:
    wishes: dict[str, tuple[Sequence[str], Sequence[str]]] = {
        "a": (["b", "c"], []),
        "d": ([], ["b", "c"]),
        "e": (["a"], ["x"]),
    }
    for ids in permutations("abcde"):
        order, cycles = load_order(ids, wishes)
        place = order.index
        assert not cycles and sorted(order) == list("abcde")
        assert place("e") < place("a") < min(place("b"), place("c"))
        assert place("d") > max(place("b"), place("c"))


def test_without_wishes_the_order_stays() -> None:
    assert load_order("cab", {"c": ((), ("x",))}) == (["c", "a", "b"], {})
