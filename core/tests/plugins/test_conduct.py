"""What plugins may not do to the rest: it is found out, named and undone."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from textwrap import dedent
from typing import Any

import attrs
import pytest
import torch

from pegboard.api import connector
from pegboard.api.context import PluginContext
from pegboard.api.platform import Platform
from pegboard.errors import PluginError
from pegboard.plugins import LoadPolicy
from pegboard.plugins.watch import CoreWatch

HEAD = """
import functools
import sys
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"platform": 0}


@hookimpl
def pegboard_platforms():
    return []
"""
UNSAFE = LoadPolicy(unsafe=True)
SECOND = "pegboard.testing.null_executor"
"""A module of the core that a plugin is the first to import."""


@pytest.fixture
def fresh_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, SECOND, raising=False)


def add(site: Any, body: str) -> None:
    site.add_source(f"{HEAD}\n{dedent(body)}\n")


PATCHES = [
    (
        "from pegboard.api.platform import Platform\nPlatform.claims = lambda self: ('x',)",
        "pegboard.api.platform.Platform.claims",
    ),
    (
        "from pegboard.api.platform import Platform\nPlatform.extra = lambda self: 1",
        "pegboard.api.platform.Platform.extra",
    ),
    (
        "from pegboard.api.platform import Platform\nPlatform.__init__ = lambda self, **k: None",
        "pegboard.api.platform.Platform.__init__",
    ),
    (
        "from pegboard.api.platform import Platform\ndel Platform.claims",
        "pegboard.api.platform.Platform.claims",
    ),
    (
        "import pegboard.plugins.nearest as core\ncore.nearest = lambda *a, **k: None",
        "pegboard.plugins.nearest.nearest",
    ),
    (
        "import pegboard.plugins.nearest as core\n"
        "@functools.wraps(core.nearest)\n"
        "def mine(*words): return None\n"
        "core.nearest = mine",
        "pegboard.plugins.nearest.nearest",
    ),
    (
        "import pegboard.plugins.board as core\nclass Board(core.Board): pass\ncore.Board = Board",
        "pegboard.plugins.board.Board",
    ),
    ("import pegboard.plugins.nearest as core\ndel core.nearest", "pegboard.plugins.nearest.near"),
    (
        "import pegboard.api.connector as core\ncore.SchedulerHalf = print",
        "pegboard.api.connector.SchedulerHalf",
    ),
    (
        "import pegboard.api.connector as core\ncore.__getattr__ = lambda name: None",
        "pegboard.api.connector.__getattr__",
    ),
    (
        f"from {SECOND} import NullExecutor\nNullExecutor.execute = print",
        f"{SECOND}.NullExecutor.execute",
    ),
]


@pytest.mark.usefixtures("fresh_second")
@pytest.mark.parametrize(("body", "named"), PATCHES)
def test_a_patch_of_the_core_fails_the_plugin_and_is_undone(
    site: Any, body: str, named: str
) -> None:
    add(site, body)
    site.add_platform("sound", "platforms:sound")
    before = everything()
    board = site.load()
    assert {r.id: r.state for r in board.plugins} == {"odd": "failed", "sound": "ready"}
    reason = next(r.reason for r in board.plugins if r.id == "odd")
    assert reason.startswith("it changes ") and named in reason and "unsafe_plugins" in reason
    assert everything() == before
    assert "odd_module" not in sys.modules
    assert not any(isinstance(finder, CoreWatch) for finder in sys.meta_path)


def everything() -> list[tuple[str, str, int]]:
    """Identities of what can be patched."""
    owners = [
        Platform,
        connector,
        *(importlib.import_module(f"pegboard.plugins.{m}") for m in MODULES),
    ]
    return [(str(o), k, id(v)) for o in owners for k, v in sorted(vars(o).items()) if callable(v)]


MODULES = ("nearest", "board")


def test_a_patch_in_a_hook_or_beside_another_failure_is_undone_too(site: Any) -> None:
    claims = Platform.claims
    patch = "from pegboard.api.platform import Platform\n    Platform.claims = print"
    site.add_source(HEAD.replace("    return []", f"    {patch}\n    return []"))
    (record,) = site.load().plugins
    assert record.state == "failed" and "Platform.claims" in record.reason
    assert Platform.claims is claims
    site.add(
        "other",
        {"plugins:other": "other_module"},
        files={"other_module.py": HEAD.replace("return []", f"{patch}\n    1 / 0")},
    )
    assert "ZeroDivisionError" in {r.id: r.reason for r in site.load("other").plugins}["other"]
    assert Platform.claims is claims


def test_unsafe_plugins_keep_their_patches_with_a_notice(site: Any) -> None:
    claims = Platform.claims
    add(site, "from pegboard.api.platform import Platform\nPlatform.claims = lambda self: ('x',)")
    try:
        board = site.load(policy=UNSAFE)
        assert board.plugins[0].state == "ready"
        assert Platform.claims is not claims
        assert any("Platform.claims, which unsafe_plugins allows" in n for n in board.notices)
    finally:
        Platform.claims = claims  # type: ignore[method-assign]


@pytest.mark.usefixtures("fresh_second")
def test_ordinary_work_is_no_patch(site: Any) -> None:
    body = f"""
    import attrs
    import {SECOND}
    from pegboard.api.context import PluginContext
    from pegboard.api.platform import Platform
    attrs.resolve_types(PluginContext)

    class Mine(Platform):
        def claims(self): return ("mine",)

    class Worker:
        pass
    """
    add(site, body)
    (record,) = site.load().plugins
    assert record.state == "ready", record.reason
    assert attrs.fields(PluginContext).version.type is str


@pytest.mark.parametrize("policy", [LoadPolicy(), UNSAFE])
def test_torchs_default_dtype_is_put_back(site: Any, policy: LoadPolicy) -> None:
    add(site, "import torch\ntorch.set_default_dtype(torch.float64)")
    try:
        (record,) = site.load(policy=policy).plugins
        if policy.unsafe:
            assert record.state == "ready" and torch.get_default_dtype() == torch.float64
        else:
            assert record.state == "failed" and "torch's default dtype" in record.reason
            assert torch.get_default_dtype() == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_a_plugin_prints_is_kept_from_the_output_and_noted(
    site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    add(site, "print('hello there')")
    (record,) = site.load().plugins
    assert record.state == "ready"
    assert any("prints at start-up" in note and "hello there" in note for note in record.notes)
    assert capsys.readouterr().out == ""


def test_what_another_thread_prints_meanwhile_is_shown(
    site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    add(
        site,
        """
        import threading
        other = threading.Thread(target=print, args=("from elsewhere",))
        other.start()
        other.join()
        sys.stdout.buffer.write(b"bytes")
        """,
    )
    (record,) = site.load().plugins
    assert any("'bytes'" in note for note in record.notes)
    assert capsys.readouterr().out == "from elsewhere\n"


def test_a_slow_import_is_noted(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pegboard.plugins.conduct._SLOW", 0.05)
    add(site, "import time\ntime.sleep(0.06)")
    (record,) = site.load().plugins
    assert record.state == "ready" and "its import and hooks took 0.1 s" in record.notes
    assert record.import_seconds >= 0.06


def test_looking_is_quick() -> None:
    watch = CoreWatch()
    watch.note()
    assert len(watch._modules) > 20 and len(watch._classes) > 50
    times = []
    for _ in range(20):
        start = time.process_time()
        assert watch.patches() == []
        times.append(time.process_time() - start)
    assert min(times) < 0.01


SETTER = """
import os
from pegboard.api.hooks import hookimpl
PEGBOARD_API = {{"platform": 0}}
os.environ["PEGBOARD_OF_TESTS"] = {value!r}

@hookimpl
def pegboard_platforms():
    return []
"""


@pytest.fixture
def setters(site: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds plugins that set a variable; what they set is forgotten."""
    monkeypatch.setenv("PEGBOARD_OF_TESTS", "before")

    def add_setters(**values: str) -> None:
        for name, value in values.items():
            files = {f"set_by_{name}.py": SETTER.format(value=value)}
            site.add(name, {f"plugins:{name}": f"set_by_{name}"}, files=files)

    return add_setters


def test_a_variable_that_two_distributions_set_is_an_error_with_both(
    site: Any, setters: Any
) -> None:
    setters(one="1", other="2")
    one, other = site.load().plugins
    assert one.state == "ready" and other.state == "failed"
    both = "is set by both one 1.0 (one) and other 1.0 (other)"
    assert other.reason == f"environment variable 'PEGBOARD_OF_TESTS' {both}"
    assert os.environ["PEGBOARD_OF_TESTS"] == "1"


def test_setting_it_to_the_same_is_no_conflict(site: Any, setters: Any) -> None:
    setters(one="1", other="1")
    assert [record.state for record in site.load().plugins] == ["ready", "ready"]


class TestBuilding:
    """Lazy parts of plugins are imported while an engine is built."""

    def board(self, site: Any, body: str, **options: Any) -> Any:
        add(site, "")
        (site.folder / "odd_module_lazy.py").write_text(dedent(body))
        return site.load(**options)

    def test_a_patch_stops_the_engine_and_is_undone(self, site: Any) -> None:
        claims = Platform.claims
        body = """
        from pegboard.api.platform import Platform
        Platform.claims = lambda self: ()
        """
        board = self.board(site, body)
        with (
            pytest.raises(PluginError, match=r"odd_module_lazy changes .*Platform\.claims"),
            board.watched(),
        ):
            importlib.import_module("odd_module_lazy")
        assert Platform.claims is claims

    @pytest.mark.usefixtures("fresh_second")
    def test_also_of_a_module_that_comes_with_it(self, site: Any) -> None:
        body = f"import {SECOND} as core\ncore.NullExecutor = object\ncore.added = 1\n"
        board = self.board(site, body)
        with pytest.raises(PluginError, match=SECOND), board.watched():
            importlib.import_module("odd_module_lazy")
        assert sys.modules[SECOND].added == 1

    def test_the_plugin_is_named_by_its_module(self, site: Any) -> None:
        board = self.board(site, "")
        claims = Platform.claims
        module = sys.modules["odd_module"]
        with (
            pytest.raises(PluginError, match=r"code of plugin plugins:odd of odd 1\.0 changes"),
            board.watched(),
        ):
            Platform.claims = module.pegboard_platforms  # type: ignore[method-assign]
        assert Platform.claims is claims

    def test_unsafe_plugins_are_only_told_of(
        self, site: Any, caplog: pytest.LogCaptureFixture
    ) -> None:
        board = self.board(site, "", policy=UNSAFE)
        logging.getLogger("pegboard").propagate = True
        claims = Platform.claims
        try:
            with board.watched():
                Platform.claims = print  # type: ignore[method-assign,assignment]
            assert Platform.claims is print
            assert "Platform.claims, which unsafe_plugins allows" in caplog.text
        finally:
            Platform.claims = claims  # type: ignore[method-assign]

    def test_an_error_in_the_building_stays_what_it_is(self, site: Any) -> None:
        claims = Platform.claims
        board = self.board(
            site, "from pegboard.api.platform import Platform\nPlatform.claims = 1\n1 / 0"
        )
        with pytest.raises(ZeroDivisionError), board.watched():
            importlib.import_module("odd_module_lazy")
        assert Platform.claims is claims
        assert not any(isinstance(finder, CoreWatch) for finder in sys.meta_path)
