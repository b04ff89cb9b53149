"""The host passes the conformance kit of devices."""

from __future__ import annotations

from pegboard_platform_cpu import pegboard_platforms
from pegboard_testkit.platform_kit import PlatformKit


class TestCpu(PlatformKit):
    (platform,) = pegboard_platforms()
    required = True
