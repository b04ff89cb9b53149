"""Which modules are known, from their source, to do nothing but declare."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

from pegboard.plugins.conduct import Conduct
from pegboard.plugins.declared import read_declaration
from pegboard.plugins.plain import only_declares

PLAIN = """
from __future__ import annotations
from typing import Any
from pegboard.api.hooks import hookimpl
from pegboard.api.model import Abilities, ModelFamily
PEGBOARD_API = {"model": 0}
NAMES = ("first", "second")
LIMIT: int = 3

@hookimpl(tryfirst=True)
def pegboard_model_families(ctx) -> tuple[ModelFamily, ...]:
    if ctx.settings is None and "x" in NAMES[:LIMIT]:
        return ()
    return tuple(one(name) for name in NAMES)

def one(name: str, **more: Any) -> ModelFamily:
    path = f"plain_{name}.parts:build"
    return ModelFamily(name, {"hf": (name,)}, path, path, path, abilities=Abilities(), **more)
"""


def test_a_module_of_contracts_and_literals_only_declares() -> None:
    assert only_declares(ast.parse(PLAIN))


@pytest.mark.parametrize(
    "line",
    [
        "import os",
        "import pegboard.api.model",
        "from os import environ",
        "from pegboard import plugins",
        "from pegboard.nn import linear",
        "from . import parts",
        "from pegboard.api.model import *",
        "ModelFamily.claims = None",
        "ModelFamily.__dict__['claims'] = None",
        "NAMES += ('third',)",
        "del NAMES",
        "print('hello')",
        "setattr(ModelFamily, 'claims', None)",
        "NAMES.index('first')",
        "(lambda: 1)()",
        "ModelFamily.__init__.__globals__['attrs'].evolve()",
        "def helper(ModelFamily): return ModelFamily()",
        "def one(): return ()",
        "tuple = one",
        "from typing import cast as tuple",
        "from pegboard.api.model import attrs\nattrs()",
        "class Other(ModelFamily): pass",
        "for ModelFamily.claims in (1, 2): pass",
        "with NAMES as ModelFamily.claims: pass",
        "[0 for ModelFamily.claims in (1, 2)]",
        "(ModelFamily := one)",
        "try:\n    pass\nexcept Exception:\n    pass",
        "@one.mark\ndef helper(): pass",
        "@(lambda f: f)\ndef helper(): pass",
        "async def helper(): pass",
        "def helper():\n    yield 1",
        "global NAMES",
        "while True: pass",
        "assert NAMES",
        "raise ValueError",
    ],
)
def test_what_could_do_more_is_watched(line: str) -> None:
    assert not only_declares(ast.parse(f"{PLAIN}\n{line}\n"))


def test_a_module_in_a_package_is_watched_for_the_package_is_imported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plain_package").mkdir()
    (tmp_path / "plain_package/__init__.py").write_text("print('anything')")
    (tmp_path / "plain_package/hooks.py").write_text(PLAIN)
    (tmp_path / "plain_alone.py").write_text(PLAIN)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read_declaration("plain_alone").plain
    assert not read_declaration("plain_package.hooks").plain


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every plugin that is watched."""
    seen, watching = list[int](), Conduct.watching

    def counted(self: Conduct, plugin: Any) -> Any:
        seen.append(1)
        return watching(self, plugin)

    monkeypatch.setattr(Conduct, "watching", counted)
    return seen


def add_plain(site: Any, more: str = "") -> None:
    site.add("plain", {"models:a-plain": "plain_module"}, files={"plain_module.py": PLAIN + more})


def test_a_plain_plugin_is_timed_and_not_watched(site: Any, watched: list[int]) -> None:
    add_plain(site)
    (record,) = site.load().plugins
    assert record.state == "ready" and record.import_seconds > 0
    assert [item.name for item in record.registered] == ["first", "second"]
    assert watched == []


def test_one_whose_module_was_imported_before_is_watched(site: Any, watched: list[int]) -> None:
    """Its functions may be others by now."""
    add_plain(site)
    site.load()
    (record,) = site.load().plugins
    assert record.state == "ready" and watched == [1]


def test_a_patch_of_what_a_plain_plugin_brought_is_blamed_on_who_made_it(
    site: Any, watched: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "pegboard.api.endpoint"
    monkeypatch.delitem(sys.modules, module, raising=False)
    add_plain(site, f"\nfrom {module} import Endpoint\n")
    site.add_saboteur(
        f"""
        from {module} import Endpoint
        Endpoint.claims = None

        @hookimpl
        def pegboard_platforms():
            return [platform()]
        """
    )
    plain, odd = sorted(site.load().plugins, key=lambda record: record.id)
    assert (odd.state, plain.state) == ("failed", "ready") and watched == [1]
    assert f"it changes {module}.Endpoint.claims" in odd.reason
    assert callable(sys.modules[module].Endpoint.claims)
