"""The platform kit passes the null platform and fails wrong ones."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from pegboard.api.platform import Platform, ProbeResult
from pegboard.testing.null_platform import NULL_PLATFORM, NullRuntime
from pegboard_testkit.platform_kit import PlatformKit


class TestNull(PlatformKit):
    platform = NULL_PLATFORM
    required = True


class Wrong(NullRuntime):
    """Everything that can be wrong at once."""

    def dtypes(self) -> tuple[str, ...]:
        return ("float32", "int8")

    def free_bytes(self) -> int:
        return self.TOTAL_BYTES + 1

    def peak_bytes(self, work: Callable[[], Any]) -> int | None:
        work()
        return 1000

    def facts(self) -> dict[str, Any]:
        return {"platform": "other"}


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("test_the_device_names_its_dtypes_and_holds_them", "int8"),
        ("test_memory_is_counted", "free_bytes"),
        ("test_a_peak_holds_at_least_what_was_taken", "4 MiB were taken"),
        ("test_facts_are_plain_and_name_the_platform", "'other', not 'null'"),
    ],
)
def test_a_wrong_runtime_fails(test: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        getattr(TestNull(), test)(Wrong())


def test_an_absent_device_is_skipped_unless_it_is_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("absent")
    module.probe = lambda: ProbeResult(False, "no abacus")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "absent", module)
    absent = Platform("abacus", "absent:probe", "absent:Runtime")
    kit = type("Absent", (PlatformKit,), {"platform": absent})
    runtime = vars(PlatformKit)["runtime"]
    function = runtime.__wrapped__ if hasattr(runtime, "__wrapped__") else runtime
    get = function.__func__ if hasattr(function, "__func__") else function
    with pytest.raises(pytest.skip.Exception, match="missing hardware: abacus: no abacus"):
        get(kit)
    kit.required = True
    with pytest.raises(AssertionError, match="no abacus"):
        get(kit)
