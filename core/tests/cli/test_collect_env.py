"""``pegboard collect-env``: what is in it, and that no secret is."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from pegboard.__about__ import __version__
from pegboard.api.ops import OpVersion
from pegboard.api.platform import Platform, ProbeResult
from pegboard.cli.collect_env import collect, shown_variables
from pegboard.cli.dispatch import run
from pegboard.plugins import Board, build_board
from pegboard.testing.null_platform import NULL_PLATFORM


def absent() -> ProbeResult:
    return ProbeResult(False, "no driver found")


def present() -> ProbeResult:
    return ProbeResult(True, "found one")


def broken_runtime(index: int) -> None:
    raise OSError(f"device {index} is lost")


def board(*extra: tuple[str, Any]) -> Board:
    return build_board(environ={"VLLM_PLUGINS": ""}, extra=extra)


def platform(name: str, probe: str, priority: int) -> tuple[str, Platform]:
    where = f"{__name__}:{probe}", f"{__name__}:broken_runtime"
    return ("platform", Platform(name, *where, priority=priority))


def test_versions_and_what_is_admitted_are_told() -> None:
    found = collect(board(), {})
    assert found["versions"]["torch"] == torch.__version__
    assert found["versions"]["pegboard-core"] == __version__
    assert found["allowlist"] == {"variable": "VLLM_PLUGINS", "value": ""}
    states = {row["id"]: row["state"] for row in found["plugins"]}
    assert states.pop("core") == "ready" and set(states.values()) == {"blocked"}
    assert all(row["used"] is None for row in found["plugins"])
    assert found["platforms"] == [] and found["environment"] == {}


def test_every_platform_tells_what_its_probe_said_and_one_is_taken() -> None:
    on = board(platform("a", "absent", 9), platform("b", "present", 1), ("platform", NULL_PLATFORM))
    rows = {row["name"]: row for row in collect(on, {})["platforms"]}
    assert rows["a"] == {
        "name": "a",
        "provider": f"pegboard-core {__version__}",
        "priority": 9,
        "usable": False,
        "reason": "no driver found",
        "chosen": False,
        "device": None,
    }
    assert rows["b"]["chosen"] and rows["b"]["device"] == (
        "cannot be opened: OSError: device 0 is lost"
    )
    assert rows["null"]["usable"] and not rows["null"]["chosen"]
    assert rows["null"]["device"]["platform"] == "null"


def test_of_equal_platforms_none_is_taken() -> None:
    on = board(platform("a", "present", 1), platform("b", "present", 1))
    assert [row["chosen"] for row in collect(on, {})["platforms"]] == [False, False]


def test_versions_of_ops_are_told_by_op() -> None:
    mine = OpVersion("mine", "rope", "nowhere:rope", platforms=("cpu",), priority=3)
    assert collect(board(("ops", mine)), {})["ops"] == {
        "rope": [
            {
                "name": "mine",
                "provider": f"pegboard-core {__version__}",
                "platforms": ["cpu"],
                "dtypes": [],
                "priority": 3,
            }
        ]
    }


def test_variables_that_matter_are_told_without_secrets() -> None:
    environ = {
        "PEGBOARD_LOG_LEVEL": "DEBUG",
        "VLLM_PLUGINS": "llama",
        "HF_TOKEN": "hidden-1",
        "VLLM_API_KEY": "hidden-2",
        "PEGBOARD_DB_PASSWORD": "hidden-3",
        "NCCL_MY_secret_thing": "hidden-4",
        "HF_ENDPOINT": "https://someone:hidden-5@mirror/path",
        "AWS_REGION": "unrelated",
    }
    shown = shown_variables(environ)
    assert "hidden" not in str(shown) and "AWS_REGION" not in shown
    assert shown["PEGBOARD_LOG_LEVEL"] == "DEBUG" and shown["VLLM_PLUGINS"] == "llama"
    assert shown["HF_TOKEN"] == "***"
    assert shown["HF_ENDPOINT"] == "https://***@mirror/path"


def test_the_command_prints_the_same_for_people_and_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_PLUGINS", "testkit")
    monkeypatch.setenv("HF_TOKEN", "hidden")
    assert run(["collect-env", "--json", "--no-plugins-except", "testkit"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["no_plugins_except"] == "testkit"
    assert [row["name"] for row in content["platforms"] if row["chosen"]] == ["null"]
    assert run(["collect-env", "--no-plugins-except", "testkit"]) == 0
    text = capsys.readouterr().out
    assert f"  null (pegboard-testkit {__version__}, priority -100): usable, taken by def" in text
    assert f"  plugins:testkit of pegboard-testkit {__version__}: ready" in text
    assert "  VLLM_PLUGINS='testkit'\n  no_plugins_except='testkit'\n" in text
    assert "HF_TOKEN=***" in text and "hidden" not in text
    assert text.count("is blocked") == 0 and ": blocked, VLLM_PLUGINS='testkit' leaves" in text
