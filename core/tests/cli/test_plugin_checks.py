"""``pegboard plugins doctor``, ``lock`` and ``verify``, and the options that go with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pegboard.__about__ import __version__
from pegboard.cli.dispatch import run

SOURCE = """
from pegboard.api.command import Command
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"command": 0}


@hookimpl
def pegboard_commands():
    return [Command("greet", "Say hello", "zz_greeter:greet")]


def greet():
    print("hello")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One installed plugin, found first; the allowlist leaves all others out."""
    folder = tmp_path / "site"
    info = folder / "zz_greeter-1.0.dist-info"
    info.mkdir(parents=True)
    pin = f"Requires-Dist: pegboard-core=={__version__}"
    (info / "METADATA").write_text(f"Name: zz-greeter\nVersion: 1.0\n{pin}\n")
    (info / "entry_points.txt").write_text("[pegboard.plugins]\nzz-greeter = zz_greeter\n")
    (folder / "zz_greeter.py").write_text(SOURCE)
    names = ["zz_greeter.py", f"{info.name}/METADATA", f"{info.name}/entry_points.txt"]
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in names))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("VLLM_PLUGINS", "zz-greeter")
    monkeypatch.chdir(tmp_path)
    yield folder
    sys.modules.pop("zz_greeter", None)


def test_a_lock_is_written_and_holds(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "lock"]) == 0
    assert run(["plugins", "verify"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "pegboard-plugins.lock: 1 plugin, 3 files locked",
        "pegboard-plugins.lock: 1 plugin, 3 files as locked",
    ]
    content = json.loads(Path("pegboard-plugins.lock").read_text())
    assert set(content["files"]) == {"zz-greeter"}


def test_every_difference_is_a_line_and_the_exit_code_is_1(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plugins", "lock", "my.lock"]) == 0
    (site / "zz_greeter.py").write_text(SOURCE + "\n")
    (site / "zz_greeter.so").write_text("")
    capsys.readouterr()
    assert run(["plugins", "verify", "my.lock"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "zz-greeter 1.0: file zz_greeter.py was changed" in lines
    assert "zz-greeter 1.0: file zz_greeter.so was added" in lines
    assert lines[-1] == "my.lock: 3 differences"
    assert run(["plugins", "verify", "my.lock", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], told["as_locked"], told["hint"]) == ("my.lock", False, None)
    assert told["differences"] == lines[:-1]


def test_verify_tells_what_the_allowlist_has_to_do_with_it(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = site / "zz_other-1.0.dist-info"
    twin.mkdir()
    (twin / "METADATA").write_text("Name: zz-other\nVersion: 1.0\n")
    (twin / "entry_points.txt").write_text("[pegboard.plugins]\nzz-other = zz_greeter\n")
    assert run(["plugins", "lock"]) == 0
    monkeypatch.setenv("VLLM_PLUGINS", "zz-greeter, zz-other")
    assert run(["plugins", "verify"]) == 1
    said = capsys.readouterr().out
    assert "1 difference" in said and "VLLM_PLUGINS=zz-greeter;" in said
    assert run(["plugins", "verify", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["hint"] == said.splitlines()[-1]
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert run(["plugins", "verify"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "Locked and not to load, for VLLM_PLUGINS='': zz-greeter"
    assert run(["plugins", "verify", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["as_locked"] and told["locked_and_blocked"] == ["zz-greeter"]


def test_a_lock_that_is_not_there_or_cannot_be_written_is_bad_input(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plugins", "verify"]) == 2
    assert "'pegboard-plugins.lock' cannot be read" in capsys.readouterr().err
    assert run(["plugins", "lock", "no/such/folder/x.lock"]) == 2
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "m", "Hello"], ["bench", "latency", "m"]])
def test_commands_that_make_an_engine_take_the_options(
    site: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert run([*command, "--plugins-lock", "absent.lock"]) == 2
    assert "plugins_lock='absent.lock' cannot be read" in capsys.readouterr().err
    assert run([*command, "--strict-plugins", "--no-plugins-except", "nobody"]) == 2
    assert "no_plugins_except entry 'nobody' matches no" in capsys.readouterr().err


def test_an_engine_does_not_start_beside_a_lock_that_does_not_hold(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plugins", "lock", "my.lock"]) == 0
    (site / "zz_greeter.py").write_text("raise SystemExit('imported')")
    assert run(["run", "some-model", "Hello", "--plugins-lock", "my.lock"]) == 1
    error = capsys.readouterr().err
    assert "installed plugins differ from plugins_lock='my.lock'" in error
    assert "file zz_greeter.py was changed" in error
    assert "zz_greeter" not in sys.modules


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--strict-plugins"], "strict mode refuses to start: plugins:zz-greeter"),
        (["-o", "strict_plugins=true"], "strict mode refuses to start: plugins:zz-greeter"),
        (["--strict-plugins", "--no-plugins-except", "zz-greter"], "did you mean 'zz-greeter'"),
    ],
)
def test_strict_mode_has_a_flag(
    site: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    (site / "zz_greeter.py").write_text("PEGBOARD_API = {'command': 0}\nraise OSError('boom')")
    assert run(["run", "some-model", "Hello", *flags]) in (1, 2)
    assert said in capsys.readouterr().err


def test_a_plugin_that_breaks_everything_can_be_left_out(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "zz_greeter.py").write_text("PEGBOARD_API = {'command': 0}\nraise OSError('boom')")
    words = ["run", "some-model", "Hello", "--strict-plugins", "--no-plugins-except", ""]
    assert run(words) != 0
    error = capsys.readouterr().err
    assert "some-model" in error and "boom" not in error
    assert run(["plugins", "list", "--json", "--no-plugins-except", ""]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["no_plugins_except"] == ""
    assert {record["state"] for record in content["plugins"]} == {"blocked"}


def test_the_doctor_tells_problems_and_its_exit_code_says_so(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plugins", "doctor"]) == 0
    assert capsys.readouterr().out.endswith("examined: 0 problems, 0 warnings\n")
    (site / "zz_greeter.py").write_text(
        SOURCE.replace("zz_greeter:greet", "zz_greeter:no_such_thing")
    )
    sys.modules.pop("zz_greeter", None)
    assert run(["plugins", "doctor"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "problem: imports: zz-greeter 1.0 (zz-greeter): 'zz_greeter' has no attribute" in text
    assert run(["plugins", "doctor", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["problems"] == 1 and content["findings"][0]["check"] == "imports"


def test_warnings_count_for_the_doctor_in_strict_mode(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "zz_greeter-1.0.dist-info/METADATA").write_text("Name: zz-greeter\nVersion: 1.0\n")
    assert run(["plugins", "doctor"]) == 0
    assert run(["plugins", "doctor", "--strict"]) == 1
    assert "warning: loading:" in capsys.readouterr().out


def test_a_time_limit_must_be_positive(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plugins", "doctor", "--timeout", "0"]) == 2
    assert "--timeout 0.0 is not allowed" in capsys.readouterr().err
